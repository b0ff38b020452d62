"""The page of a run."""

import re
import sys
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from somf import SOMF
from somf.report import HeatMaps, PatchGrid, facts_of, make_report
from somf.report.charts import Curve, area_chart, line_chart, thin, visible_range
from somf.report.page import headline

SECTIONS = ["advice", "run", "progress", "usage", "atoms", "examples"]
VOID = {"meta", "link", "img", "br", "path", "use"}


class Checker(HTMLParser):
    """Checks that elements are closed in order, and collects ids and addresses."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.addresses = [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        self.addresses += [attrs[name] for name in ("src", "href") if name in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        if tag not in VOID:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page(model):
    return model.report()


def sections(text):
    return re.findall(r'<section id="(\w+)"', text)


def test_a_page_has_all_sections_and_needs_nothing_else(model, X, tmp_path):
    page = model.report(tmp_path / "report.html", X=X)
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert text == page.html
    assert sections(text) == SECTIONS
    checked = Checker(text)
    for address in checked.addresses:
        assert address.startswith(("data:", "#")), address
    assert {f"#{name}" for name in SECTIONS} <= set(checked.addresses)
    assert len(set(checked.ids)) == len(checked.ids)
    assert len(text) < 1e6


def test_without_samples_there_are_no_examples(page):
    assert sections(page.html) == SECTIONS[:-1]


def test_what_was_run_is_told(page):
    text = page.html
    assert "n_epochs=15 epochs are done" in text
    rows = dict(re.findall(r'<tr><th scope="row">(.+?)</th><td>(.+?)</td></tr>', text))
    assert rows["samples"] == "250"
    assert rows["features observed in an iteration"] == "60"
    assert rows["alpha"] == "0.1"
    assert rows["code_estimator"] == "&#39;masked&#39;"  # among all parameters
    changed = text.split("not at their defaults")[0]
    assert "code_estimator" not in changed


def test_parameters_are_shown_as_one_writes_them(model):
    facts = facts_of(model)
    values = {"random_state": 123456789, "dict_init": np.eye(3), "alpha": 0.1}
    page = make_report(
        replace(facts, parameters=facts.parameters | values), brief=True
    ).html
    assert "<td>123456789</td>" in page
    assert "<td>array of shape (3, 3)</td>" in page


def test_names_are_escaped(model):
    facts = facts_of(model, name="<script>alert(1)</script>")
    page = make_report(facts, brief=True)
    assert "<script>alert" not in page.html
    assert "&lt;script&gt;alert" in page.html


def test_only_a_run_that_is_going_refreshes_itself(model, page):
    running = make_report(facts_of(model, status="running"), brief=True).html
    assert 'data-refresh="5"' in running
    assert sections(running) == SECTIONS[:4]
    assert "data-refresh" not in page.html


def test_a_notebook_shows_the_page_in_a_frame(page):
    shown = page._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert shown.count("<") == 2  # the frame alone: its document is escaped
    assert repr(page) == f"<somf report, {len(page.html) / 1e6:.1f} MB>"


def test_a_model_of_partial_fit(X):
    """Without epochs, curves are over iterations."""
    model = SOMF(4, alpha=0.1, n_threads=1, random_state=0)
    for start in range(0, 300, 50):
        model.partial_fit(X[start : start + 50])
    text = model.report().html
    assert ">iterations<" in text
    assert ">epochs<" not in text


def test_the_report_does_not_change_the_model(model, X):
    before = model.state_.D.copy(), model.n_steps_
    model.report(X=X)
    np.testing.assert_array_equal(model.state_.D, before[0])
    assert model.n_steps_ == before[1]


def test_headline(model, X):
    from somf.report import code_samples

    coded = code_samples(model, X)
    numbers = headline(facts_of(model, coded=coded))
    assert numbers["objective"] == f"{model.objective_:.4g}"
    assert numbers["iterations"] == "150"
    assert numbers["epochs"] == "15"
    explained = float(numbers["of the signal explained"].rstrip("%"))
    assert explained == pytest.approx(100 * coded.explained, abs=0.1)


def test_few_iterations_are_not_called_settled(model, page):
    facts = facts_of(model)
    trace = {name: column[-3:] for name, column in facts.trace.items()}
    trace |= dict.fromkeys(("epoch", "validation_objective"), np.full(3, np.nan))
    few = make_report(replace(facts, trace=trace), brief=True).html
    assert "too few iterations to judge" in few
    assert "has settled" not in few
    assert "the objective has settled" in page.html


def test_nothing_is_explained_of_zeros(model, X):
    page = model.report(X=np.zeros_like(X[:3])).html
    assert "explained" not in page


def test_atoms_must_be_those_of_the_model(model):
    grids = [PatchGrid(np.zeros((8, 5, 5, 4))), PatchGrid(np.zeros((7, 10, 12, 1)))]
    maps = HeatMaps(np.zeros((8, 60)), shape=(6, 10))
    for atoms, shape in zip([*grids, maps], ["8, 100", "7, 120", "8, 60"], strict=True):
        with pytest.raises(ValueError, match=rf"\({shape}\).* model.* \(8, 120\)"):
            model.report(atoms=atoms)
    assert model.report(atoms=PatchGrid(np.zeros((8, 10, 12, 1))))


def test_a_model_must_be_fitted():
    from sklearn.exceptions import NotFittedError

    with pytest.raises(NotFittedError):
        SOMF().report()


@pytest.mark.parametrize("package", ["jinja2", "matplotlib"])
def test_missing_packages_are_named(model, monkeypatch, package):
    for module in [name for name in sys.modules if name.startswith("somf.report")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=rf"{package}, .*'somf\[report\]'"):
        model.report()


# -- charts --------------------------------------------------------------------------


def test_charts_take_their_colours_from_the_page():
    chart = line_chart([Curve("a", [0, 1], [1, 2])], "x", "y", "A <line>")
    assert "var(--series-1)" in chart
    assert "#0a0" not in chart
    assert 'aria-label="A &lt;line&gt;"' in chart
    assert " id=" not in chart.replace("<clipPath id=", "").replace("<path id=", "")


def test_charts_of_nothing_and_of_a_constant():
    nothing = np.full(3, np.nan)
    for y in (nothing, np.zeros(3), np.ones(3)):
        assert line_chart([Curve("a", range(3), y)], "x", "y", "", zero=True)
    assert area_chart(range(3), {"a": np.zeros(3)}, "x", "y", "")


@pytest.mark.parametrize("name", ["_u", "d$x^$", "a_b"])
def test_names_of_curves_are_no_markup(name):
    curves = [Curve(name, [0, 1], [1, 2]), Curve("other", [0, 1], [2, 1])]
    chart = line_chart(curves, "x", "y", "")
    assert f">{name}<" in chart
    assert ">other<" in chart


def test_a_curve_of_one_point_is_seen():
    one = line_chart([Curve("a", [1], [2])], "x", "y", "")
    assert 'style="fill: var(--series-1)' in one
    two = line_chart([Curve("a", [1, 2], [2, 3])], "x", "y", "")
    assert "fill: var(--series-1)" not in two


def test_long_curves_are_thinned_to_means():
    x = np.arange(10_000.0)
    y = np.where(x % 2, 1.0, 3.0)
    y[50] = np.nan
    thin_x, thin_y = thin(x, y)
    assert len(thin_x) <= 300
    np.testing.assert_allclose(thin_y[:-1], 2, atol=0.05)
    assert (np.diff(thin_x) > 0).all()


def test_the_first_steps_do_not_set_the_scale():
    y = np.concatenate([[1e6], np.linspace(2, 1, 99)])
    assert visible_range([y]) == (1.0, pytest.approx(2, abs=0.02))
    assert visible_range([[np.nan]]) == (0.0, 0.0)
