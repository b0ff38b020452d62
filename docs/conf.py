"""Settings of the documentation site; `make docs` builds it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import somf

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))  # for the extensions of our own

project = "somf"
author = "The somf developers"
copyright = "The somf developers"
release = version = somf.__version__

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_gallery.gen_gallery",
    "site_math",
]
exclude_patterns = ["_build", "figures"]
templates_path = ["_templates"]
highlight_language = "none"  # indented blocks hold formulas

# Markdown
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3

# API pages
autosummary_generate = True
# Some file systems do not tell the two names apart.
autosummary_filename_map = {"somf.Plan": "somf.Plan-class"}
autodoc_typehints = "none"  # the docstrings have them in words
autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
numpydoc_show_class_members = False

# Gallery: examples are executed while the site is built.
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "auto_examples",
    "subsection_order": [
        "../examples/start",
        "../examples/image",
        "../examples/fmri",
        "../examples/distributed",
    ],
    "within_subsection_order": "FileNameSortKey",
    "backreferences_dir": "generated/backreferences",
    "doc_module": ("somf",),
    "download_all_examples": False,
    "show_signature": False,
    "remove_config_comments": True,
    "write_computation_times": False,  # a page that fetches scripts
}

# Pages
html_theme = "pydata_sphinx_theme"
html_title = "somf"
html_static_path = ["_static"]
html_css_files = ["somf.css"]
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": [], "get-started": []}  # they have no section
html_theme_options = {
    "navigation_with_keys": False,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": ["sphinx-version"],
    "secondary_sidebar_items": ["page-toc"],
}

# Markdown links that lead out of docs/ on a code host have a page here.
LINKS = [
    (r"(?:\.\./)*CONTRIBUTING\.md", "contributing.md"),
    (r"(?:\.\./)*CHANGELOG\.md", "changelog.md"),
    (r"(?:\.\./)*changes/README\.md", "contributing.md#change-notes"),
    (r"(?:\.\./)*examples/(\w+/\w+)\.py", r"auto_examples/\1.rst"),
    (r"(?:\.\./)*examples/?", "auto_examples/index.rst"),
    (r"docs/(\S+?)", r"\1"),
]


def follow_links(text: str) -> str:
    """Return Markdown whose links lead to the pages of the site."""
    for pattern, page in LINKS:
        text = re.sub(rf"\]\({pattern}\)", f"]({page})", text)
    return text


def read_page(app: Any, name: str, content: list[str]) -> None:
    """Let the links of a page stay within the site."""
    content[0] = follow_links(content[0])


def read_included(app: Any, path: Path, page: str, content: list[str]) -> None:
    """Let the links of a file outside of docs/ stay within the site."""
    content[0] = follow_links(content[0])


def setup(app: Any) -> None:
    """Connect the links."""
    app.connect("source-read", read_page)
    app.connect("include-read", read_included)
