"""Atoms as brain maps on the template, and a viewer to move through them."""

from __future__ import annotations

import io
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from somf.progress import CountProgress
from somf.report.atoms import png_tag
from somf.sources.checks import need

Array = NDArray[Any]

N_MAPS = 20  # pictures: 40 kB each
N_VIEWED = 10  # maps of the viewer: 50 kB each, beside 700 kB for the template
COLOURS = "cold_hot"  # of nilearn: small values are dark, as the background is


class BrainMaps:
    """Atoms as maps of the brain.

    Parameters
    ----------
    components_img : 4-D image
        An atom a volume, in the space of the MNI template.
    mask_img : 3-D image, default=None
        The mask whose voxels are the features, in nilearn's order. With it,
        reconstructions of volumes are shown, too.

    Examples
    --------
    >>> import nibabel, numpy as np
    >>> from somf.report import BrainMaps
    >>> maps = nibabel.Nifti1Image(np.zeros((5, 5, 5, 3), np.float32), np.eye(4))
    >>> BrainMaps(maps).n_maps
    3
    """

    def __init__(self, components_img: Any, mask_img: Any = None) -> None:
        need("nilearn", "fmri", "Showing brain maps")
        self.components_img = components_img
        self.mask_img = mask_img
        if len(components_img.shape) != 4:
            raise ValueError(
                f"components_img has shape {components_img.shape}; it must have 4 "
                "dimensions, the last one for the atoms."
            )
        self.n_maps = components_img.shape[3]
        self.sample_caption = "Above the sample, below its reconstruction."
        self.atom_caption = (
            "Atoms as maps on the template; cuts go through the largest region."
        )
        self.caption = (
            f"{self.atom_caption} In the viewer, click or drag to move, and choose "
            "another map from the list."
        )

    def html(self, order: Array) -> Markup:
        """Return the viewer, and pictures of the most used maps."""
        figure = Markup('<figure class="map">{}<figcaption>{}</figcaption></figure>')
        shown = [int(i) for i in order[:N_MAPS]]
        viewed = shown[:N_VIEWED]
        views, pictures = {}, []
        with CountProgress("report", "maps", wanted="auto") as progress:
            for n, i in enumerate(shown, 1):
                if i in viewed:
                    views[i] = self._view(i)
                pictures.append(figure.format(self.atom(i), i))
                progress(n, len(shown))
        viewer = _viewer(views)
        grid = Markup('<div class="maps">{}</div>').format(Markup("").join(pictures))
        if len(order) > N_MAPS:
            text = '<p class="quiet">The {} most used of {} maps are shown.</p>'
            grid += Markup(text).format(N_MAPS, len(order))
        return viewer + grid

    def atom(self, number: int) -> Markup:
        """Return cuts through a map."""
        return _cuts(self._map(number), f"Map {number}")

    def sample(self, sample: Array, reconstruction: Array) -> Markup | None:
        """Return cuts through a volume and its reconstruction, if a mask is known."""
        if self.mask_img is None:
            return None
        from nilearn.masking import unmask
        from nilearn.plotting import find_xyz_cut_coords

        volumes = [
            unmask(np.nan_to_num(v), self.mask_img) for v in (sample, reconstruction)
        ]
        limit = float(np.nanquantile(np.abs(sample), 0.99)) or 1.0
        cuts = find_xyz_cut_coords(volumes[1])
        names = ("Sample", "Reconstruction")
        return Markup("").join(
            _cuts(volume, name, cuts, limit)
            for volume, name in zip(volumes, names, strict=True)
        )

    def _map(self, number: int) -> Any:
        from nilearn.image import index_img

        return index_img(self.components_img, number)

    def _view(self, number: int) -> str:
        from nilearn.plotting import view_img

        with _quiet():
            view = view_img(
                self._map(number),
                bg_img=_template(),
                threshold=1e-9,
                cmap=COLOURS,
                colorbar=False,
            )
        # The ids are random, and an icon would come from the network.
        html = re.sub(r"(?<=-)[0-9a-f]{32}", "map", str(view.html))
        html = re.sub(r"<link[^>]*>", "", html)
        style = "<style>body { margin: 0; background: #000; color: #ddd }</style>"
        return html.replace("</head>", f"{style}</head>", 1)


@contextmanager
def _quiet() -> Iterator[None]:
    """Leave out what NumPy warns of inside of nilearn, which nobody can change."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*'partition' will ignore the 'mask'")
        yield


def _template() -> Any:
    from nilearn.datasets import load_mni152_template

    return load_mni152_template(resolution=2)  # nilearn keeps it


def _cuts(image: Any, alt: str, cuts: Any = None, limit: float | None = None) -> Markup:
    """Return three cuts through an image, where nilearn finds them best."""
    from nilearn.plotting import plot_stat_map

    if limit is None:
        limit = float(np.abs(image.get_fdata()).max()) or 1.0
    figure = Figure(figsize=(5.2, 1.9))
    FigureCanvasAgg(figure)
    with _quiet():
        plot_stat_map(
            image,
            bg_img=_template(),
            figure=figure,
            cut_coords=cuts,
            display_mode="ortho",
            threshold=1e-9,
            vmax=limit,
            symmetric_cbar=True,
            cmap=COLOURS,
            colorbar=False,
            draw_cross=False,
            black_bg=True,
        )
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=110, facecolor="black")
    return png_tag(file.getvalue(), alt, "cuts")


def _viewer(views: dict[int, str]) -> Markup:
    """Return one viewer for several maps, of which what they share is stored once.

    The documents are cut at every quotation mark. Parts that are the same in all, the
    template and the program above all, come once; the others once for each map.
    """
    parts = {number: html.split('"') for number, html in views.items()}
    first = next(iter(parts.values()))
    parts = {i: part for i, part in parts.items() if len(part) == len(first)}
    own = [j for j in range(len(first)) if len({p[j] for p in parts.values()}) > 1]
    data = {
        "shared": ["" if j in set(own) else part for j, part in enumerate(first)],
        "places": own,
        "maps": {i: [part[j] for j in own] for i, part in parts.items()},
    }
    options = [Markup("<option value={}>Map {}</option>").format(i, i) for i in parts]
    text = json.dumps(data).replace("<", "\\u003c")  # so that no tag ends the script
    return Markup(
        '<div class="viewer"><label>Viewer <select>{}</select></label>'
        '<iframe title="Interactive viewer of brain maps"></iframe>'
        '<script type="application/json">{}</script></div>'
    ).format(Markup("").join(options), Markup(text))
