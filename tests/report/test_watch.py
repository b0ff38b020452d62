"""The server of a run's page."""

import threading
import time
import urllib.request
from urllib.error import HTTPError, URLError

import pytest

from somf.report import watch as module
from somf.report.watch import Watch


def get(address, path="", **headers):
    request = urllib.request.Request(address + path, headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return answer.read().decode(), answer.headers


@pytest.fixture
def watch(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    with Watch(tmp_path) as watch:
        yield watch


def test_pages_are_served_as_they_are_now(watch, tmp_path):
    page, _ = get(watch.address)
    assert "has not made its first iteration" in page
    assert 'data-refresh="1"' in page
    (tmp_path / "report.html").write_text("first")
    page, headers = get(watch.address)
    assert page == "first"
    assert headers["Cache-Control"] == "no-store"
    (tmp_path / "report.html").write_text("second")
    (tmp_path / "trace.csv").write_text("step\n")
    assert get(watch.address, "report.html?x=1")[0] == "second"
    assert get(watch.address, "trace.csv")[0] == "step\n"


def test_the_page_of_an_earlier_run_is_not_served(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    page = tmp_path / "report.html"
    page.write_text("earlier")
    (tmp_path / "trace.csv").write_text("earlier")
    with Watch(tmp_path) as watch:
        assert "has not made its first iteration" in get(watch.address)[0]
        with pytest.raises(HTTPError, match="404"):
            get(watch.address, "trace.csv")
        (tmp_path / "new").write_text("now")
        (tmp_path / "new").replace(page)
        assert get(watch.address)[0] == "now"


def test_who_does_not_want_to_wait_need_not(tmp_path, monkeypatch):
    """Ctrl-C in the wait at the end ends the wait, not a run that is finished."""

    def interrupt(seconds):
        raise KeyboardInterrupt

    with Watch(tmp_path) as watch:
        get(watch.address)
        monkeypatch.setattr(watch._asked, "wait", interrupt)
    with pytest.raises(URLError):
        get(watch.address)


@pytest.mark.parametrize("path", ["settings.toml", "../secret", "trace.csv", "x/y"])
def test_nothing_else_is_served(watch, tmp_path, path):
    (tmp_path / "settings.toml").write_text("private")
    (tmp_path.parent / "secret").write_text("private")
    with pytest.raises(HTTPError, match="404"):
        get(watch.address, path)


def test_another_name_for_this_machine_is_refused(watch):
    """A page from elsewhere must not read a run under a name of its own."""
    with pytest.raises(HTTPError, match="404"):
        get(watch.address, Host="evil.example:80")


def test_who_looks_on_gets_the_last_page(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "PATIENCE", 30.0)
    pages, page = [], tmp_path / "report.html"

    def browse(address):
        while pages[-1:] != ["finished"]:
            pages.append(get(address)[0])
            time.sleep(0.01)

    with Watch(tmp_path) as watch:
        browser = threading.Thread(target=browse, args=[watch.address])
        browser.start()
        while not pages:
            time.sleep(0.01)
        page.write_text("finished")
    browser.join(10)
    assert not browser.is_alive()
    assert pages[-1] == "finished"


def test_nobody_is_waited_for_if_nobody_looked(tmp_path, monkeypatch):
    waited = []
    with Watch(tmp_path) as watch:
        monkeypatch.setattr(watch._asked, "wait", waited.append)
    assert waited == []
