"""The page of a run that is going."""

import signal
import sys
import urllib.request
from urllib.error import URLError

import numpy as np
import pytest
from commands import OPTIONS, PARAMETERS, check_error, components, read_trace, somf

from somf import SOMF
from somf.progress import observed_by


@pytest.fixture
def always_live(monkeypatch):
    """The page is written after each iteration."""
    pytest.importorskip("jinja2")
    monkeypatch.setattr("somf.cli.live.EVERY", 0.0)
    monkeypatch.setattr("somf.cli.live.SHARE", 1e9)


FEW_STEPS = [*OPTIONS, "--batch-size", 60]  # one for each of 3 epochs


def test_the_page_of_a_run_while_it_is_going(always_live, X, data, tmp_path):
    """It is there with the trace, refreshes itself, and becomes the report."""
    target, seen = tmp_path / "run", []
    page = target / "report.html"

    def look(model, report):  # before the page of this iteration is written
        if page.exists():
            seen.append((page.read_text(), read_trace(target / "trace.csv")))

    with observed_by(look):
        result = somf("fit", data, "--output", target, *FEW_STEPS)
    assert result.exit_code == 0, result.output
    assert [len(trace["step"]) for _, trace in seen] == [1, 2]
    assert all('data-refresh="5"' in text for text, _ in seen)
    assert "data-refresh" not in page.read_text()
    assert '<span class="status finished">' in page.read_text()
    model = SOMF(**PARAMETERS | {"batch_size": 60}).fit(X)
    np.testing.assert_array_equal(components(target), model.components_)


def test_the_page_of_a_run_that_was_stopped(always_live, data, tmp_path):
    target = tmp_path / "run"

    def stop(model, report):
        if report.step == 2:
            signal.raise_signal(signal.SIGTERM)

    with observed_by(stop):
        result = somf("fit", data, "--output", target, *FEW_STEPS)
    check_error(result, 143, "--resume")
    page = (target / "report.html").read_text()
    assert '<span class="status stopped">' in page
    assert f"somf fit --output {target} --resume" in page
    assert len(read_trace(target / "trace.csv")["step"]) == 2
    assert somf("report", target).exit_code == 0  # from the checkpoint
    assert "data-refresh" not in (target / "report.html").read_text()
    assert somf("fit", "--output", target, "--resume").exit_code == 0
    assert '<span class="status finished">' in (target / "report.html").read_text()


@pytest.mark.filterwarnings("default")
def test_a_page_that_fails_does_not_end_the_run(
    always_live, data, tmp_path, monkeypatch
):
    tried = []

    def fail(*_, **__):
        tried.append(True)
        raise OSError("No space left on device")

    monkeypatch.setattr("somf.report.make_report", fail)
    result = somf("fit", data, "--output", tmp_path / "run", *FEW_STEPS)
    assert result.exit_code == 0
    told = [line for line in result.stderr.splitlines() if "page of the run" in line]
    assert len(told) == 1
    assert "No space left" in told[0]
    assert len(tried) == 1  # and not again after each iteration


def test_a_short_run_has_no_page(run):
    assert not (run / "report.html").exists()


def test_watching_a_run(always_live, data, tmp_path, monkeypatch):
    """The page is served on loopback from the start until the run has ended."""
    from somf.report.watch import Watch

    monkeypatch.setattr("somf.report.watch.PATIENCE", 0.0)
    monkeypatch.setattr("somf.cli.live.EVERY", 1e9)  # but the first one comes at once
    addresses, pages, events = [], [], []
    begin, end = Watch.__enter__, Watch.__exit__

    def enter(watch):
        addresses.append(watch.address)
        return begin(watch)

    def look(model, report):
        with urllib.request.urlopen(addresses[0], timeout=10) as answer:
            pages.append(answer.read().decode())

    def leave(watch, *error):  # which may wait for somebody who looks on
        events.append("left")
        end(watch, *error)

    monkeypatch.setattr(Watch, "__enter__", enter)
    monkeypatch.setattr(Watch, "__exit__", leave)
    module = sys.modules["somf.cli.fit"]
    monkeypatch.setattr(module, "show", lambda *_: events.append("shown"))
    with observed_by(look):
        result = somf("fit", data, "--output", tmp_path / "run", *FEW_STEPS, "--watch")
    assert result.exit_code == 0, result.output
    assert f"Watch the run: {addresses[0]}" in result.stderr
    assert addresses[0].startswith("http://127.0.0.1:")
    assert "has not made its first iteration" in pages[0]
    assert '<span class="status running">' in pages[1]
    assert events == ["shown", "left"]
    with pytest.raises(URLError):
        urllib.request.urlopen(addresses[0], timeout=10)


def test_the_mask_of_images_is_kept(tmp_path):
    """So that the atoms of a run on brain images are shown as maps."""
    nibabel = pytest.importorskip("nibabel")
    rng = np.random.default_rng(0)
    volumes = np.zeros((16, 18, 15, 30), np.float32)
    volumes[3:-3, 3:-3, 3:-3] = 1000 + rng.standard_normal((10, 12, 9, 30))
    image = nibabel.Nifti1Image(volumes, np.diag([4.0, 4.0, 4.0, 1.0]))
    image.to_filename(tmp_path / "image.nii.gz")
    target = tmp_path / "run"
    result = somf("fit", tmp_path / "image.nii.gz", "--output", target, *FEW_STEPS)
    assert result.exit_code == 0, result.output
    mask = nibabel.load(target / "mask.nii.gz").get_fdata()
    assert mask.sum() == components(target).shape[1]
    pytest.importorskip("jinja2")
    result = somf("report", target)
    assert result.exit_code == 0, result.output
    assert 'class="viewer"' in (target / "report.html").read_text()
