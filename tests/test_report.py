"""The page of a run."""

import json
import re
from html.parser import HTMLParser

import pytest
import torch

from likewise.diagnostics import plots
from likewise.report import Encoded, measure, write_page

FACTS = {"run": "a <b>run</b>", "loss": "SupConLoss"}


class Elements(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self):
        super().__init__()
        self.attributes, self.words, self.ids, self.within = [], [], [], []

    def handle_starttag(self, tag, attrs):
        self.attributes += attrs
        self.ids += [value for name, value in attrs if name == "id"]
        self.within.append(tag)

    def handle_endtag(self, tag):
        while self.within and self.within.pop() != tag:
            pass

    def handle_data(self, data):
        if "script" not in self.within and "style" not in self.within:
            self.words.append(data)


@pytest.fixture(scope="module")
def samples():
    generator = torch.Generator().manual_seed(0)
    images, labels = torch.rand(60, 1, 5, 4, generator=generator), torch.arange(60) % 3
    features = torch.nn.functional.one_hot(labels, 3) + 0.6 * torch.randn(60, 3, generator=generator)
    parts = [Encoded(features[rows], images[rows], labels[rows]) for rows in (slice(30), slice(30, 60))]
    return *parts, measure(*parts, ("<cat>", "dog", "cow"))


@pytest.fixture(scope="module")
def page(samples, tmp_path_factory):
    train, test, measured = samples
    path = tmp_path_factory.mktemp("report") / "report.html"
    metrics = {"loss": [(0, 2.0), (1, 1.0)], "learning_rate": [(0, 0.1), (1, 0.0)], "odd": [(0, 1.0)]}
    write_page(path, facts=FACTS, metrics=metrics, measured=measured, train=train, test=test)
    elements = Elements()
    elements.text = path.read_text(encoding="utf-8")
    elements.feed(elements.text)
    return elements


def test_the_page_names_no_address_outside_itself(page):
    named = [value for name, value in page.attributes if name in {"src", "href", "data", "action", "poster", "srcset"}]
    style = re.findall(r"<style>(.*?)</style>", page.text.split("<script", 1)[0], flags=re.DOTALL)
    assert named == []
    assert not re.search(r"url\(|@import", "".join(style))
    assert len(style) == 1


def test_the_page_may_fetch_nothing(page):
    policies = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    assert len(policies) == 1
    assert policies[0].startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*|connect-src", policies[0])


def test_a_map_says_how_many_samples_it_shows(samples, tmp_path, monkeypatch):
    train, test, measured = samples
    monkeypatch.setattr("likewise.report.page.MAPPED", 12)
    write_page(tmp_path / "page.html", facts=FACTS, metrics={}, measured=measured, train=train, test=test)
    assert "12 of 30 held-out samples" in (tmp_path / "page.html").read_text(encoding="utf-8")


def test_the_page_holds_every_picture_and_the_library_once(page):
    pictures = ["accuracy", "errors-kNN", "errors-linear-probe", "map", "similarities", "wrong", "curves"]
    assert [name for name in page.ids if name in pictures] == pictures
    assert page.text.count(plots.script()) == 1


def test_the_page_tells_facts_and_names_as_text(page):
    words = " ".join(page.words)
    assert "a <b>run</b>" in words
    assert "class <cat>" in words
    assert "SupConLoss" in words


def test_the_page_tells_every_accuracy_with_its_interval(page, samples):
    words = " ".join(page.words)
    for both in samples[2].accuracies.values():
        for accuracy in both.values():
            for share in (accuracy.overall, *accuracy.per_class.values()):
                low, high = share.interval
                assert f"{100 * share.value:.2f} % [{100 * low:.1f}, {100 * high:.1f}]" in words


def test_features_that_know_the_class_beat_inputs_that_do_not(samples):
    for name, difference in samples[2].differences.items():
        both = samples[2].accuracies[name]
        assert difference.value == pytest.approx(both["encoder"].overall.value - both["raw inputs"].overall.value)
        assert difference.interval[0] > 0


def test_measurements_are_plain_json(samples):
    read = json.loads(json.dumps(samples[2].as_json(), allow_nan=False))
    share = read["accuracy"]["kNN"]["encoder"]
    assert share["value"] == share["correct"] / share["count"]
    assert share["per_class"].keys() == {"<cat>", "dog", "cow"}
    assert {name: read[name] for name in ("alignment", "uniformity")} == samples[2].geometry


def test_tiny_tests_make_a_page_and_json_too(tmp_path):
    points = Encoded(torch.tensor([[1.0], [2.0], [4.0], [5.0]]), torch.zeros(4, 1), torch.tensor([0, 0, 1, 1]))
    test = Encoded(torch.tensor([[1.5], [4.5]]), torch.zeros(2, 1), torch.tensor([0, 1]))
    measured = measure(points, test, ("low", "high"))
    write_page(tmp_path / "page.html", facts=FACTS, metrics={}, measured=measured, train=points, test=test)
    assert "NaN" not in json.dumps(measured.as_json())
    assert (tmp_path / "page.html").stat().st_size > 1_000_000


def test_bars_are_errors_with_whiskers_inside_the_scale(samples):
    both = samples[2].accuracies["linear probe"]
    figure = plots.class_errors(both, ["cat", "dog", "cow"])
    for bars, accuracy in zip(figure.data, both.values(), strict=True):
        assert list(bars.y) == pytest.approx([100 - 100 * share.value for share in accuracy.per_class.values()])
        for height, above, below in zip(bars.y, bars.error_y.array, bars.error_y.arrayminus, strict=True):
            assert -1e-9 <= height - below <= height <= height + above <= 100 + 1e-9


def test_image_rows_place_every_pixel_and_leave_gaps():
    images = torch.arange(2 * 3 * 2 * 2.0).reshape(2, 3, 1, 2, 2)
    picture = torch.tensor(plots.image_rows(images, ["one", "two"]).data[0].z)
    assert sorted(picture[~picture.isnan()].tolist()) == list(range(24))
    assert picture[0, :2].tolist() == [0, 1]
    assert picture[3, -2:].tolist() == [20, 21]
    assert picture[2].isnan().all()
