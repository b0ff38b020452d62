"""Atoms as brain maps."""

import json
import re

import numpy as np
import pytest
from reported import make_brain

from somf.report import BrainMaps
from somf.report.brains import _viewer


@pytest.fixture(scope="module")
def maps():
    return BrainMaps(*make_brain(2))


def test_pictures_and_one_viewer(maps):
    html = str(maps.html(np.array([1, 0])))
    assert html.count('class="cuts"') == 2
    assert re.findall(r'alt="Map (\d)"', html) == ["1", "0"]
    assert html.count("<iframe") == 1
    assert re.findall(r"<option value=(\d)>", html) == ["1", "0"]
    assert "http" not in html.replace("http://www.w3.org", "")  # no icon either


def test_many_maps_share_what_is_the_same():
    views = {i: f'<p id="{"x" * 1000}" title="{i}">"{i % 2}"</p>' for i in range(9)}
    html = str(_viewer(views))
    assert len(html) < 2500
    data = json.loads(re.search(r"<script[^>]*>(.*?)</script>", html)[1])
    for number, view in views.items():
        parts = list(data["shared"])
        for place, part in zip(data["places"], data["maps"][str(number)], strict=True):
            parts[place] = part
        assert '"'.join(parts) == view


def test_a_page_cannot_end_the_script_of_the_viewer():
    html = str(_viewer({0: "<script>a</script>", 1: "<script>b</script>"}))
    assert html.count("</script>") == 1


def test_a_terminal_is_told_how_far_it_is(maps, monkeypatch, capsys):
    monkeypatch.setattr(maps, "atom", lambda number: "")
    monkeypatch.setattr(maps, "_view", lambda number: "")
    maps.html(np.arange(3))
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    maps.html(np.arange(3))
    assert "3/3 maps" in capsys.readouterr().err


def test_samples_need_the_mask(maps):
    n_features = int(maps.mask_img.get_fdata().sum())
    sample = np.linspace(-1, 1, n_features)
    assert maps.sample(sample, sample).count("<img") == 2
    assert BrainMaps(maps.components_img).sample(sample, sample) is None


def test_a_single_map_is_refused(maps):
    with pytest.raises(ValueError, match="it must have 4 dimensions"):
        BrainMaps(maps.mask_img)
