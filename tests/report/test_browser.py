"""Pages in a real browser: Chromium, driven by playwright.

Where one of them is missing the tests say so and are skipped.
"""

import os
import shutil
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
import pytest
from reported import make_brain

from somf.report import (
    BrainMaps,
    PatchGrid,
    compare,
    facts_of,
    make_report,
)
from somf.report import page as page_module
from somf.report import watch as watch_module
from somf.report.watch import Watch

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
PAGES = ("plain", "patches", "brain", "compare")
SECTIONS = {
    name: ["advice", "run", "progress", "usage", "atoms", "examples"] for name in PAGES
} | {"compare": ["results", "advice", "parameters", "progress", "atoms"]}
PHONE = {"width": 360, "height": 740}


@pytest.fixture(scope="session")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as driver:
        # The sandbox of Chromium refuses to run as root, as in containers.
        root = hasattr(os, "getuid") and os.getuid() == 0
        options = ["--no-sandbox"] if root else []
        browser = driver.chromium.launch(executable_path=path, args=options)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def folder(model, X, tmp_path_factory):
    """One page of each kind."""
    folder = tmp_path_factory.mktemp("pages")
    images, mask = make_brain()
    n_features = int(mask.get_fdata().sum())
    brain = BrainMaps(images, mask)
    # The samples of the model, as if they were volumes.
    brain.sample = lambda x, y: BrainMaps.sample(
        brain, np.resize(x, n_features), np.resize(y, n_features)
    )
    facts = facts_of(model)
    patches = PatchGrid(model.components_.reshape(8, 4, 5, 6))
    model.report(folder / "plain.html", X=X)
    model.report(folder / "patches.html", X=X, atoms=patches)
    few = type(model)(3, alpha=0.1, n_threads=1, random_state=0).fit(X)
    few.report(folder / "brain.html", X=X[:2], atoms=brain)
    compare([facts, facts_of(few, name="few")]).save(folder / "compare.html")
    return folder


class Tab:
    """A page in a tab, with all errors that it tells of and all that it asks for."""

    def __init__(self, browser, address, **settings):
        self.context = browser.new_context(**settings)
        self.page = self.context.new_page()
        self.errors, self.asked = [], []
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)

    def _hear(self, message):
        if message.type == "error":
            self.errors.append(message.text)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()

    def colour(self, selector, name="color"):
        """Return a colour as three numbers."""
        text = self.page.locator(selector).first.evaluate(
            f"element => getComputedStyle(element)[{name!r}]"
        )
        return np.array([float(n) for n in text.strip("rgba()").split(",")[:3]])


def address(folder, name):
    return (folder / f"{name}.html").as_uri()


@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_without_errors_and_asks_for_nothing(browser, folder, name):
    with Tab(browser, address(folder, name)) as tab:
        tab.page.wait_for_load_state("networkidle")
        found = tab.page.locator("section[id] > h2").evaluate_all(
            "headings => headings.map(heading => heading.parentElement.id)"
        )
        assert found == SECTIONS[name]
        links = tab.page.locator("nav a").evaluate_all("all => all.map(a => a.hash)")
        assert links == [f"#{section}" for section in found]
        images = tab.page.locator("img").evaluate_all(
            "all => all.map(image => [image.complete, image.naturalWidth, image.alt])"
        )
        assert all(loaded and width and alt for loaded, width, alt in images)
        assert tab.errors == []
        outside = [u for u in tab.asked if not u.startswith(("data:", "about:"))]
        assert outside == [address(folder, name)]


def test_a_page_could_not_ask_for_anything(browser, folder):
    """Its policy forbids what would leave it, whatever is in it."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_error(404)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    outside = f"http://127.0.0.1:{server.server_port}/"
    with Tab(browser, address(folder, "plain")) as tab:
        tab.page.evaluate(
            """async address => {
                const image = new Image();
                const ended = new Promise(end => { image.onerror = end; });
                image.src = address + "image";
                await ended;
                await fetch(address + "fetch", {mode: "no-cors"}).catch(() => {});
            }""",
            outside,
        )
        assert any("Content Security Policy" in text for text in tab.errors)
    server.shutdown()
    server.server_close()
    assert asked == []


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_shows_all_without_scrolling_sideways(browser, folder, name):
    with Tab(browser, address(folder, name), viewport=PHONE) as tab:
        width = tab.page.evaluate("document.documentElement.scrollWidth")
        assert width <= PHONE["width"]
        smallest = tab.page.locator(".charts svg text").evaluate_all(
            "all => Math.min(...all.map(text => text.getBoundingClientRect().height))"
        )
        assert smallest > 8  # pixels: small, but readable


def contrast(first, second):
    """Return the ratio of luminances as accessibility guidelines define it."""

    def luminance(colour):
        c = colour / 255
        c = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
        return c @ [0.2126, 0.7152, 0.0722]

    low, high = sorted([luminance(first), luminance(second)])
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_modes_are_readable(browser, folder, scheme):
    with Tab(browser, address(folder, "plain"), color_scheme=scheme) as tab:
        paper = tab.colour("body", "backgroundColor")
        assert bool(paper.mean() < 128) == (scheme == "dark")
        for selector in ("body", "figcaption", "th", "nav a", ".status"):
            assert contrast(tab.colour(selector), paper) > 4.5, selector
        assert contrast(tab.colour(".charts svg text", "fill"), paper) > 4.5
        line = tab.colour(".spark .s1", "stroke")
        assert contrast(line, paper) > 3


def test_printing(browser, folder):
    """On white paper also in dark mode, without what only a screen can do."""
    with Tab(browser, address(folder, "brain"), color_scheme="dark") as tab:
        assert tab.page.pdf().startswith(b"%PDF")
        assert tab.page.locator("details").first.evaluate("d => d.open")
        tab.page.emulate_media(media="print")
        assert tab.colour("body", "backgroundColor").min() > 240
        assert contrast(tab.colour("body"), np.full(3, 255.0)) > 7
        assert not tab.page.locator("nav").is_visible()
        assert not tab.page.locator(".viewer").is_visible()


def test_the_viewer_moves(browser, folder):
    def picture(tab):
        tab.page.wait_for_timeout(300)
        return tab.page.locator(".viewer iframe").screenshot()

    with Tab(browser, address(folder, "brain")) as tab:
        tab.page.locator(".viewer").scroll_into_view_if_needed()
        canvas = tab.page.frame_locator(".viewer iframe").locator("canvas").first
        canvas.wait_for()
        hidden = tab.page.locator(".viewer iframe").evaluate(
            "frame => frame.contentDocument.body.scrollHeight - frame.clientHeight"
        )
        assert hidden <= 1  # pixels: the whole viewer is in its frame
        first = picture(tab)
        assert picture(tab) == first
        box = canvas.bounding_box()
        canvas.click(position={"x": 0.1 * box["width"], "y": 0.45 * box["height"]})
        moved = picture(tab)
        assert moved != first
        options = tab.page.locator(".viewer option").evaluate_all(
            "all => all.map(option => option.value)"
        )
        assert sorted(options) == ["0", "1", "2"]
        tab.page.locator(".viewer select").select_option(options[1])
        canvas.wait_for()
        assert picture(tab) not in (first, moved)
        tab.page.locator(".viewer select").select_option(options[0])
        canvas.wait_for()
        assert picture(tab) == first
        assert tab.errors == []


# -- a run that is going -------------------------------------------------------------


@pytest.fixture
def going(model, tmp_path, monkeypatch):
    """A folder of a run, and functions that write its page and that end it."""
    monkeypatch.setattr(page_module, "REFRESH", 0.2)
    monkeypatch.setattr(watch_module, "PATIENCE", 0.0)
    path = tmp_path / "report.html"

    def begin():
        make_report(facts_of(model, status="running"), brief=True).save(path)

    def end():
        beside = tmp_path / "new"
        make_report(facts_of(model)).save(beside)
        beside.replace(path)

    return tmp_path, begin, end


def test_a_page_on_disk_refreshes_itself_until_the_run_ends(browser, going):
    folder, begin, end = going
    begin()
    with Tab(browser, (folder / "report.html").as_uri()) as tab:
        assert tab.page.locator(".status").inner_text() == "running"
        end()
        tab.page.locator(".status.finished").wait_for(timeout=5000)
        loads = len(tab.asked)
        tab.page.wait_for_timeout(600)
        assert len(tab.asked) == loads  # now it rests
        assert tab.errors == []


def test_a_page_that_is_served_refreshes_itself_until_the_run_ends(browser, going):
    folder, begin, end = going
    with Watch(folder) as watch, Tab(browser, watch.address) as tab:
        begin()
        tab.page.locator(".status.running").wait_for(timeout=5000)
        tab.page.wait_for_timeout(500)
        assert len(tab.asked) > 1
        end()
        tab.page.locator(".status.finished").wait_for(timeout=5000)
        assert tab.page.locator("#atoms").count() == 1
        assert tab.errors == []


def test_a_page_whose_run_is_gone_says_so(browser, going):
    folder, begin, _ = going
    with Watch(folder) as watch:
        begin()
        tab = Tab(browser, watch.address)
        assert not tab.page.locator("#lost").is_visible()
    with tab:
        tab.page.locator("#lost").wait_for(timeout=5000)
        assert tab.page.locator(".charts svg").count() > 0  # what was known stays
