"""Pages in a real browser: they draw themselves, answer the reader, and ask nothing of any network."""

import csv
import itertools
import re
import shutil

import pytest
import torch

from likewise.diagnostics import Snapshot, save_snapshots
from likewise.evaluation import KNN, LinearProbe, raw_features
from likewise.report import RunView, write_page
from likewise.report.page import Shown, write_neighbours
from made_runs import made_run, pictured

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(BROWSER is None, reason="there is no Chromium: apt-get install chromium"),
]
LONG = "a very long name of a class " * 11
STRANGE = ("<img src=x onerror=alert(1)>", "🦉 emoji", "شجرة", "</script><b>bold</b>", LONG, "plain")


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - starts nothing until it is asked

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=BROWSER, args=["--no-sandbox", "--enable-unsafe-swiftshader"]
        )
        yield opened
        opened.close()


@pytest.fixture
def opened(browser):
    """Opens a page; at the end there must have been no error and no request beyond the file."""
    contexts, requests, errors = [], [], []

    def open_page(path, width=1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: requests.append(request.url))
        page.on("console", lambda said: errors.append(said.text) if said.type in {"error", "warning"} else None)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert [address for address in requests if not address.startswith(("file:", "data:", "blob:"))] == []
    assert [error for error in errors if "GPU stall" not in error and "WebGL" not in error] == []


def run_of(folder, names, samples=90, *, images=True, shape=(3, 6, 6), snapshot=True, evaluations=None, ids=None):
    """A run on made-up images, with features that know the class in part."""
    evaluations = [KNN(3, "uniform"), LinearProbe()] if evaluations is None else evaluations
    loss = {"class_path": "likewise.losses.SupConLoss", "init_args": {"temperature": 0.1}}
    facts = {"parts": {"loss": loss, "inputs": None}, "labels": {"kind": "classes", "names": names}, "seed": 7}
    files = {"metrics.csv": "step,epoch,loss,rate\n0,0,2.0,0.1\n1,0,1.0,0.2\n2,1,0.5,0.1\n"}
    parts, features = pictured(names, (samples,) * 3, shape, 0.6, ids)
    beside, evaluations = [raw_features(parts)] * images, evaluations if len(names) > 1 else ()
    run = made_run(folder, features, evaluations, beside=beside, name="a <b>run", files=files, **facts)
    if snapshot:
        index = torch.arange(24)
        embeddings = torch.randn(24, 2, 8, generator=torch.Generator().manual_seed(0))
        batch = Snapshot(embeddings, index, parts.train.labels[index], epoch=2, step=2, samples=24, temperature=0.1)
        save_snapshots(run.batches, {"last": batch})
    write_page(run.report, [RunView(run, parts if images else None)])
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("runs"), STRANGE)


def drawn(page):
    """Scrolls through a page and waits until everything on it is drawn."""
    for place in page.locator(".figure, .map, .anchors").all():
        place.scroll_into_view_if_needed()
        place.page.wait_for_function("element => element.dataset.drawn", arg=place.element_handle(), timeout=60_000)


def still(page):
    """Waits until a page has scrolled where it was asked to: the event comes a frame later."""
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(done))))")


def fits(page, width, scheme):
    """Everything is drawn, in the colours that were asked for, and nothing is wider than the page."""
    drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator(".js-plotly-plot").count() == page.locator(".figure, .panel").count() > 6
    title = page.locator("h1").bounding_box()
    assert title["x"] + title["width"] <= width
    paper, ink = page.evaluate(
        "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    )
    assert (sum(map(int, paper[4:-1].split(","))) < 200) == (scheme == "dark")
    assert paper != ink
    assert page.screenshot(full_page=True)[:4] == b"\x89PNG"


def test_a_page_fits_on_a_phone_and_a_tapped_point_shows_the_sample(run, opened):
    """Panels of a figure stand below each other."""
    page = opened(run.report, 390, color_scheme="dark", has_touch=True, is_mobile=True)
    fits(page, 390, "dark")
    assert page.locator(".modebar-container .modebar-btn:visible").count() == 0
    for name in ("curves", "similarities"):
        figure = page.locator(f"#{name}")
        whole = figure.bounding_box()
        titles = [title.bounding_box() for title in figure.locator(".annotation-text").all()]
        panels = [panel.bounding_box() for panel in figure.locator(".draglayer .nsewdrag").all()]
        assert len(titles) == len(panels) > 1
        assert all(whole["x"] <= box["x"] and box["x"] + box["width"] <= whole["x"] + 390 for box in titles)
        assert all(box["width"] > 200 and box["height"] > 100 for box in panels)
        order = sorted([*titles, *panels], key=lambda box: box["y"])
        assert all(above["y"] + above["height"] <= below["y"] for above, below in itertools.pairwise(order))
        assert order[-1]["y"] + order[-1]["height"] < whole["y"] + whole["height"]
    assert "plain" in page.locator("#confusion .xtick text").all_text_contents()
    point = page.locator("#map .panel").first.locator("path.point").nth(5)
    point.scroll_into_view_if_needed()
    still(page)
    box = point.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.locator(".hint").wait_for(state="visible", timeout=5_000)
    assert "row " in page.locator(".hint").inner_text()
    page.touchscreen.tap(4, 4)
    page.locator(".hint").wait_for(state="hidden", timeout=5_000)


def test_strange_names_are_text_and_pictures_are_painted_when_they_are_seen(run, opened):
    page = opened(run.report, color_scheme="light")
    fits(page, 1280, "light")
    words = " ".join(page.locator("main").inner_text().split())
    for name in STRANGE:
        assert " ".join(name.split()) in words
    assert page.locator("main img, main section b").count() == 0
    picture = page.locator(".gallery canvas").first
    picture.scroll_into_view_if_needed()
    page.wait_for_function("of => of.width > 100", arg=picture.element_handle())
    picture.hover()
    page.locator(".hint").wait_for(state="visible")


def test_a_map_answers_pointing_and_choosing(run, opened):
    """Hovering shows the sample; layout and colours are chosen, and a class is shown alone."""
    page = opened(run.report)
    drawn(page)
    page.locator("#map").scroll_into_view_if_needed()
    hint, points = page.locator(".hint"), page.locator("#map .panel").first.locator("path.point")
    assert not hint.is_visible()
    point = points.nth(5)
    point.scroll_into_view_if_needed()
    still(page)  # a page that scrolls hides what it said
    point.hover(force=True)  # the point lies under the layer that listens
    hint.wait_for(state="visible")
    words = hint.inner_text()
    assert any(name.strip() in " ".join(words.split()) for name in STRANGE)
    assert "row " in words
    assert hint.locator("canvas").is_visible()
    colours = hint.locator("canvas").evaluate("of => [...of.getContext('2d').getImageData(0, 0, 64, 64).data]")
    assert len(set(colours)) > 10  # a picture
    assert page.locator(".hint img, .hint b").count() == 0  # names are text
    page.evaluate("scrollBy(0, 1)")
    hint.wait_for(state="hidden")
    point.hover(force=True, position={"x": 1, "y": 1})  # the same point: it is still under the pointer
    hint.wait_for(state="visible")
    count, first = points.count(), points.first.get_attribute("transform")
    layout, colour = page.locator("#map select").all()
    layout.select_option("PCA")
    page.wait_for_function("document.getElementById('map').dataset.drawn === 'PCA'")
    assert points.first.get_attribute("transform") != first
    colour.select_option("kNN is")
    buttons = page.locator("#map .legend button")
    assert buttons.all_inner_texts() == ["right", "wrong"]
    buttons.first.click()
    assert buttons.first.get_attribute("aria-pressed") == "true"
    assert points.count() == count  # others in grey


def test_an_anchor_is_chosen_and_bars_are_relative_to_its_longest(run, opened):
    page = opened(run.report)
    drawn(page)
    total, anchors = page.locator("#anchors .forces > p"), page.locator("#anchors .anchor")
    first = total.inner_text()
    for place in (0, 6, 3):
        anchors.nth(place).click()
        bars = [bar.bounding_box()["width"] for bar in page.locator("#anchors .bar").all()]
        said = page.locator("#anchors .force").all_inner_texts()
        lengths = [float(re.search(r"cosine [-.0-9]+ · ([.0-9]+)", " ".join(words.split()))[1]) for words in said]
        longest = page.locator("#anchors .room").first.bounding_box()["width"]
        assert max(bars) == pytest.approx(longest)
        assert bars == pytest.approx([longest * length / max(lengths) for length in lengths], rel=0.02, abs=1)
    assert total.inner_text() != first
    assert page.locator("#anchors .pull .force").count() == 7  # 3 other samples of the class and its other view
    assert page.locator("#anchors .push .force").count() == 8


@pytest.mark.parametrize("shape", [(3, 6, 6), (6,)], ids=["images", "vectors"])
def test_long_names_are_short_and_leave_the_row_in_view(shape, opened, tmp_path):
    page = opened(run_of(tmp_path, (LONG, "plain"), shape=shape).report, 390)
    drawn(page)
    for anchor in page.locator("#anchors .anchor").all():
        assert anchor.bounding_box()["width"] < 250
    for samples in (page.locator("#anchors .force"), page.locator(".pair")):
        for sample in samples.all():
            assert sample.bounding_box()["height"] < 250
            inside = sample.bounding_box()
            for row in sample.locator(".place", has_text="row ").all():
                box = row.bounding_box()
                assert inside["x"] <= box["x"] < box["x"] + box["width"] <= inside["x"] + inside["width"] + 1
                assert inside["y"] <= box["y"] < box["y"] + box["height"] <= inside["y"] + inside["height"]
    name = page.locator("#anchors .force .name", has_text="very long").first
    assert name.get_attribute("title").split() == LONG.split()
    assert name.bounding_box()["height"] < 30


def test_samples_are_called_by_their_ids_and_lists_are_downloaded_and_copied(opened, tmp_path):
    """The last one as on a plain server, without a clipboard."""
    ids = [f'{"deep/" * 20}<b>, "{row}".jpg' for row in range(90)]
    page = opened(run_of(tmp_path, STRANGE, ids=ids).report, permissions=["clipboard-read", "clipboard-write"])
    drawn(page)
    for name in ("hard-positives.csv", "hard-negatives.csv", "mistakes.csv"):
        link = page.locator(f"a[download='{name}']")
        link.focus()
        with page.expect_download() as begun:
            page.keyboard.press("Enter")
        assert begun.value.suggested_filename == name
        text = begun.value.path().read_bytes().decode()
        _, *rows = csv.reader(text.splitlines(keepends=True))
        assert {row[0 if name == "mistakes.csv" else 1] for row in rows} <= {f"test/{name}" for name in ids}
        if name == "mistakes.csv":
            page.evaluate("void (navigator.clipboard.writeText = () => Promise.reject(new Error('not allowed')))")
        button = page.locator("p.files", has=link).locator("button.copy")
        button.click()
        page.wait_for_function("of => of.textContent === 'Copied'", arg=button.element_handle())
        assert page.evaluate("navigator.clipboard.readText()").splitlines() == text.splitlines()
    place = page.locator(".pair .place").first
    assert place.get_attribute("title").startswith("test/deep/deep/")
    assert len(place.inner_text()) == 40
    anchor = page.locator("#anchors .force .place").first
    assert anchor.get_attribute("title").startswith("train/deep/deep/")
    assert re.search(r", view [12]$", anchor.inner_text())
    assert "row " not in page.locator(".gallery").first.inner_text()
    point = page.locator("#map .panel").first.locator("path.point").nth(5)
    point.scroll_into_view_if_needed()
    still(page)
    point.hover(force=True)
    page.locator(".hint").wait_for(state="visible")
    assert "test/deep/" in page.locator(".hint").inner_text()
    box = page.locator(".hint").bounding_box()
    assert box["x"] + box["width"] <= 1280
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_pictures_of_a_search_are_painted_too(opened, tmp_path):
    shown = [Shown("photo.jpg", "others", row, f"{row}.jpg", "0.98", pictured=True) for row in range(3)]
    write_neighbours(
        tmp_path / "page.html", "Nearest", "By cosine.", shown, {"others": lambda of: torch.rand(len(of), 3, 8, 8)}
    )
    page = opened(tmp_path / "page.html")
    for picture in page.locator(".gallery canvas").element_handles():
        page.wait_for_function("of => of.width > 100", arg=picture)


@pytest.mark.parametrize(
    ("names", "samples", "images"),
    [(tuple(f"class {label}" for label in range(300)), 300, True), (("only",), 40, True), (STRANGE, 90, False)],
    ids=["hundreds of classes", "one class", "no images"],
)
def test_other_runs_are_drawn_too(names, samples, images, opened, tmp_path):
    run = run_of(tmp_path, names, samples, images=images, snapshot=images, evaluations=[KNN(3, "uniform")])
    page = opened(run.report, 390)
    drawn(page)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert run.report.stat().st_size < 5_000_000


@pytest.mark.slow
def test_ten_thousand_points_stay_responsive(opened, tmp_path):
    """By WebGL, in software: the map is drawn again in a second or so, and points are found under the pointer."""
    run = run_of(tmp_path, tuple(map(str, range(10))), 10_000, snapshot=False, evaluations=())
    page = opened(run.report)
    page.locator("#map").scroll_into_view_if_needed()
    page.wait_for_function("document.getElementById('map').dataset.drawn", timeout=60_000)
    page.locator("#map select").first.select_option("PCA")
    page.wait_for_function("document.getElementById('map').dataset.drawn === 'PCA'", timeout=60_000)
    area = page.locator("#map .panel .plot").first.bounding_box()
    hint = page.locator(".hint")
    for share in range(3, 18):
        page.mouse.move(area["x"] + area["width"] * share / 20, area["y"] + area["height"] / 2)
        page.wait_for_timeout(60)
        if hint.is_visible():
            break
    assert "row " in hint.inner_text()
    assert run.report.stat().st_size < 5_000_000
