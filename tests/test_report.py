"""The page of a run, from its folder alone."""

import base64
import io
import json
import math
import re
from html.parser import HTMLParser

import numpy as np
import pytest
import torch
from PIL import Image

from likewise.data import Parts, Samples
from likewise.diagnostics import plots
from likewise.diagnostics.plots.images import montage
from likewise.evaluation import KNN, FeatureParts, Features, LinearProbe, Retrieval, raw_features, save_features
from likewise.report import Subject, write_page
from likewise.report.sections import choices, classes, curves, errors, maps, scores
from likewise.runs import Run
from likewise.scores import ENCODER, RAW, Found, Score

NAMES = ("<cat>", '<a href="https://a.example">dog</a>', "cow</script>")


class Elements(HTMLParser):
    """Collects what a page is made of."""

    def __init__(self, text):
        super().__init__()
        self.attributes, self.words, self.ids, self.within, self.text = [], [], [], [], text
        self.feed(text)

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


def page_of(run, parts=None):
    write_page(run.report, [Subject(run, parts)])
    return Elements(run.report.read_text(encoding="utf-8"))


def figures_of(page):
    """Return each figure's traces by the id of its element."""
    found = re.findall(r'Plotly\.newPlot\(\s*"([^"]+)",\s*(\[.*?\]),\s*\{"template"', page.text, flags=re.DOTALL)
    return {name: json.loads(traces) for name, traces in found}


def features_of(samples, noise, part, names):
    generator = torch.Generator().manual_seed(len(part))
    ones = torch.nn.functional.one_hot(samples.labels, len(names)).float()
    vectors = ones + noise * torch.randn(ones.shape, generator=generator)
    return Features(vectors, samples.labels, names, samples.rows, part)


def samples_of(first, count, names=NAMES, channels=3):
    generator = torch.Generator().manual_seed(first)
    images = torch.randint(0, 256, (count, channels, 5, 4), generator=generator, dtype=torch.uint8)
    rows = torch.arange(first, first + count).flip(0)  # as a split may leave them
    return Samples(images, torch.arange(count) % len(names), names, rows=rows)


def evaluated(run, parts, features, evaluations):
    raw = raw_features(parts)
    for of in (features, raw):
        for evaluation in evaluations:
            run.add(evaluation(*of))
    with run.writing(run.embeddings.name) as path:
        save_features(path, features)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with everything, its parts, and its page."""
    run = Run.create(tmp_path_factory.mktemp("runs"), "a <b>run<b>")
    loss = {"class_path": "likewise.losses.SupConLoss", "init_args": {"temperature": 0.1, "odd": "<i>"}}
    facts = {"parts": {"loss": loss, "offers": None}, "labels": {"kind": "classes", "names": NAMES}, "seed": 7}
    run.describe(facts | {"versions": {"likewise": "0"}, "seconds": {"training": 1.5, "evaluation": 0.25}})
    run.write("metrics.csv", b"step,epoch,loss,rate\n0,0,2.0,0.1\n1,0,1.0,\n2,1,0.5,0.2\n")
    run.write("histograms.csv", b"rank_drift_histogram,0,3,1,0\nrank_drift_histogram,1,0,4,4\n")
    parts = Parts(*(samples_of(first, count) for first, count in ((100, 60), (200, 30), (300, 45))))
    pairs = zip((parts.train, parts.validation, parts.test), ("train", "validation", "test"), strict=True)
    features = FeatureParts(*(features_of(samples, 0.7, part, NAMES) for samples, part in pairs))
    for epoch, value in ((1, 0.4), (2, 0.6)):
        run.add(Found((Score("kNN", "accuracy", value, 0.3, 0.7, 30, part="validation"),)).at(epoch))
    evaluated(run, parts, features, [KNN(), LinearProbe(), Retrieval()])
    return run, parts, features


@pytest.fixture(scope="module")
def page(whole):
    return page_of(whole[0], whole[1])


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


def test_the_page_holds_every_picture_and_the_library_once(page):
    pictures = ["scores", "errors-kNN-accuracy", "errors-linear-probe-accuracy", "map", "similarities", "wrong"]
    pictures += ["choices", "curves", "validation", "noted"]
    assert [name for name in page.ids if name in pictures] == pictures == list(figures_of(page))
    assert len(set(page.ids)) == len(page.ids)
    assert page.text.count(plots.script()) == 1


def test_facts_and_names_are_shown_as_text(page):
    words = " ".join(page.words)
    for told in (
        "a <b>run<b>",
        "class <cat>",
        "odd=<i>",
        "temperature=0.1",
        "1.5 s training, 0.2 s evaluation",
        NAMES[1],
    ):
        assert told in words
    assert page.text.count("</script>") == page.text.count("<script") == len(figures_of(page)) + 1


def test_no_figure_takes_a_name_for_a_tag(page):
    """Plotly draws tags in labels, links among them: names reach it escaped."""
    traces = [trace for of in figures_of(page).values() for trace in of]
    drawn = json.dumps([{key: value for key, value in trace.items() if key != "legendgroup"} for trace in traces])
    assert "&lt;cat&gt;" in drawn
    assert not re.search(r"<(a|b|i|cat)\b", drawn)


def test_every_score_is_on_the_page_as_it_was_measured(page, whole):
    words = " ".join(page.words)
    final = [score for score in whole[0].scores if score.part == "test"]
    assert len(final) == 2 * (4 + 4 + 3)
    for score in final:
        assert f"{100 * score.value:.2f} % [{100 * score.low:.1f}, {100 * score.high:.1f}]" in words


def test_accuracies_and_differences_are_counted_right(page, whole):
    """Against a count of each sample's nearest training samples."""
    run, parts, features = whole
    chosen = next(score.choices for score in run.scores if score.features == ENCODER and score.part == "test")
    right = {}
    for kind, of in ((ENCODER, features), (RAW, raw_features(parts))):
        setting = next(s for s in run.scores if (s.evaluation, s.features, s.part) == ("kNN", kind, "test")).choices
        k, weights = re.fullmatch(r"k=(\d+), weights=(\w+)", setting).groups()
        units, others = (torch.nn.functional.normalize(one.vectors) for one in (of.train, of.test))
        right[kind] = []
        for query, label in zip(others, of.test.labels, strict=True):
            similarities = (units @ query).double()
            near = similarities.argsort(descending=True)[: int(k)]
            votes = torch.zeros(3).double()
            for one in near:
                weight = (
                    torch.exp(similarities[one] / 0.07) if weights == "similarity" else 1 + 1e-6 * similarities[one]
                )
                votes[of.train.labels[one]] += weight
            right[kind].append(int(votes.argmax() == label))
    assert chosen
    mean = {kind: np.mean(of) for kind, of in right.items()}
    lead = next(line for line in page.words if line.startswith("kNN: accuracy"))
    assert f"{100 * mean[ENCODER]:.2f} % [" in lead
    assert f"raw inputs {100 * mean[RAW]:.2f} % [" in lead
    assert f"difference {100 * (mean[ENCODER] - mean[RAW]):+.2f} [" in lead


def test_bars_are_errors_with_whiskers_inside_the_scale(page, whole):
    traces = figures_of(page)["errors-kNN-accuracy"]
    assert [bar["name"] for bar in traces] == [ENCODER, RAW]
    labels = whole[2].test.labels
    outcome = Subject(whole[0]).outcomes["kNN", "accuracy", ENCODER, "test"].values
    wrong = [100 * float(1 - outcome[labels == label].mean()) for label in range(3)]
    assert traces[0]["y"] == pytest.approx(wrong, abs=1e-4)
    for bar in traces:
        whiskers = zip(bar["y"], bar["error_y"]["array"], bar["error_y"]["arrayminus"], strict=True)
        assert all(-1e-9 <= y - below <= y <= y + above <= 100 + 1e-9 for y, above, below in whiskers)


def test_hovering_over_the_map_gives_the_class_and_the_test_row(page, whole):
    test = whole[2].test
    said = [text for trace in figures_of(page)["map"] for text in trace["hovertext"]]
    expected = {f"row {row}" for row in range(300, 345)}
    assert {text.rpartition(", ")[2] for text in said} == expected
    assert len(said) == 2 * 45
    row = int(test.rows[0])
    name = {0: "&lt;cat&gt;"}[int(test.labels[0])]
    assert f"{name}, row {row}" in said


def test_a_map_says_how_many_samples_it_shows(whole, monkeypatch):
    monkeypatch.setattr(maps, "MAPPED", 12)
    section = maps.section([Subject(whole[0], whole[1])])
    assert "12 of 45 test samples" in section.sentence


def test_choices_show_all_that_was_tried_and_star_what_was_chosen(page, whole):
    candidates = [score for score in whole[0].scores if score.part == "validation" and score.epoch is None]
    assert {score.evaluation for score in candidates} == {"kNN", "linear probe", "retrieval"}
    candidates = [score for score in candidates if score.evaluation != "retrieval"]  # which has nothing to choose
    words = " ".join(page.words)
    assert all(score.choices in words for score in candidates)
    lines = figures_of(page)["choices"]
    drawn = [(x, round(y, 6)) for line in lines for x, y in zip(line["x"], line["y"], strict=True)]
    for score in candidates:
        value = float(re.search(r"=([\d.e+-]+)", score.choices)[1])
        assert (value, round(100 * score.value, 6)) in drawn
    stars = sum(line["marker"]["symbol"].count("star") for line in lines)
    assert stars == page.words.count("chosen") == 4


def test_curves_are_what_was_logged_and_what_validation_found(page):
    logged = {tuple(line["x"]): line["y"] for line in figures_of(page)["curves"]}
    assert logged == {(0, 1, 2): [2.0, 1.0, 0.5], (0, 2): [0.1, 0.2]}
    assert [(line["x"], line["y"]) for line in figures_of(page)["validation"]] == [([1, 2], [40.0, 60.0])]


def test_a_long_curve_keeps_its_ends(monkeypatch):
    monkeypatch.setattr(curves, "MOST_POINTS", 10)
    points = [(step, float(step)) for step in range(95)]
    thinned = curves.thinned(points)
    assert thinned[0] == points[0]
    assert thinned[-1] == points[-1]
    assert 8 <= len(thinned) <= 11
    assert set(thinned) <= set(points)


def test_the_drift_histogram_is_a_share_of_each_epoch(page):
    (heat,) = figures_of(page)["noted"]
    assert heat["x"] == [1, 2]
    assert heat["z"] == [[75, 0], [25, 50], [0, 50]]


def pixels_of(figure):
    content = base64.b64decode(figure.data[0].source.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)))


def test_wrong_predictions_are_shown_in_their_own_colours(whole):
    """The first pictures of the figure are the test image itself, and the training image nearest to it."""
    run, parts, features = whole
    (trace,) = figures_of(Elements(errors.section([Subject(run, parts)]).body + "<p>"))["wrong"]
    drawn = np.asarray(Image.open(io.BytesIO(base64.b64decode(trace["source"].partition(",")[2]))))
    predicted = Subject(run).outcomes["kNN", "prediction", ENCODER, "test"].values
    wrong = (predicted != features.test.labels).nonzero().flatten()
    for place, row in enumerate(wrong[:8].tolist()):
        left = drawn[7 * place : 7 * place + 5, :4, :3]
        assert np.array_equal(left, parts.test.inputs[row].movedim(0, -1).numpy())
        units = torch.nn.functional.normalize(features.train.vectors)
        nearest = int((units @ torch.nn.functional.normalize(features.test.vectors[row], dim=0)).argmax())
        beside = drawn[7 * place : 7 * place + 5, 8:12, :3]
        assert np.array_equal(beside, parts.train.inputs[nearest].movedim(0, -1).numpy())


@pytest.mark.parametrize(("channels", "red_green_blue"), [(1, (51, 51, 51)), (3, (51, 102, 255)), (2, (51, 51, 51))])
def test_image_rows_keep_colours_and_leave_gaps(channels, red_green_blue):
    colour = torch.tensor([0.2, 0.4, 1.0])[:channels]
    images = colour.view(1, 1, channels, 1, 1).expand(2, 3, channels, 70, 64)
    figure = plots.image_rows(images, ["one", "two"])
    drawn = pixels_of(figure)
    shown = drawn[drawn[..., 3] == 255]
    assert len(shown) == 2 * 3 * 64 * 64
    assert (shown[:, :3] == red_green_blue).all()
    assert (drawn[64:66, :, 3] == 0).all()


def test_image_rows_place_every_pixel():
    images = torch.arange(2 * 3 * 2 * 2.0).reshape(2, 3, 1, 2, 2) / 255
    picture = montage(images)
    shown = picture[picture[..., 3] == 255]
    assert sorted(shown[:, 0].tolist()) == list(range(24))
    assert picture[0, :2, 0].tolist() == [0, 1]
    assert picture[4, -4:-2, 0].tolist() == [20, 21]


def test_a_run_without_its_data_has_no_pictures_and_says_so_nowhere(whole):
    page = page_of(whole[0])
    assert "wrong" not in page.ids
    assert {"scores", "map", "similarities", "choices"} <= set(page.ids)
    assert [trace["type"] for trace in figures_of(page)["map"]] == ["scatter"] * 3


def bare(tmp_path, features, **facts):
    run = Run.create(tmp_path, "mine")
    run.describe({"source": "<mine>.npz", **facts})
    with run.writing(run.embeddings.name) as path:
        save_features(path, FeatureParts(features, features, features))
    return run


def test_a_collapsed_encoder_has_a_page_that_says_so(tmp_path):
    labels = torch.arange(40) % 2
    features = Features(torch.full((40, 8), 0.3), labels, ("cat", "dog"))
    run = bare(tmp_path, features)
    run.add(KNN()(features, features, features))
    page = page_of(run)
    words = " ".join(page.words)
    assert words.count("Collapsed: ") == 2
    assert all(set(trace["x"]) == {0} for trace in figures_of(page)["map"])
    assert not re.search(r"\bnan\b", words, flags=re.IGNORECASE)


@pytest.mark.parametrize("labels", [None, torch.rand(30, 7) > 0.5])
def test_other_labels_and_none_have_a_page_too(tmp_path, labels):
    names = () if labels is None else tuple(f"<{name}>" for name in range(7))
    features = Features(torch.randn(30, 4), labels, names, torch.arange(30) + 500)
    run = bare(tmp_path, features, labels={"kind": None if labels is None else "label sets", "names": names})
    run.write("metrics.csv", b"step,epoch,loss\n0,0,2.0\n1,0,1.0\n")
    page = page_of(run)
    assert page.ids[-2:] == ["map", "curves"]
    (trace,) = figures_of(page)["map"]
    assert [text.rpartition(", ")[2] for text in trace["hovertext"]] == [f"row {row}" for row in range(500, 530)]
    assert "<mine>.npz" in " ".join(page.words)


def test_a_run_with_nothing_but_its_facts_has_a_page(tmp_path):
    run = Run.create(tmp_path, "new")
    run.describe({"seed": 0})
    assert [name for name in page_of(run).ids if name] == []


def test_many_classes_do_not_flood_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(maps, "MAPPED", 60)
    names = tuple(f"class number {label}" for label in range(300))
    labels = torch.arange(600) % 300
    vectors = torch.randn(600, 16)
    vectors[labels < 280] += 9 * torch.randn(300, 16)[labels[labels < 280]]  # the last 20 classes are noise
    features = Features(vectors, labels, names)
    run = bare(tmp_path, features)
    run.add(KNN(k=3, weights="uniform")(*(features[torch.arange(first, first + 300)] for first in (0, 300, 300))))
    page = page_of(run)
    bars = figures_of(page)["errors-kNN-accuracy"][0]
    assert len(bars["y"]) == classes.MOST
    assert "the 40 of 300 classes with the lowest scores" in " ".join(page.words)
    scores_of = {score.subset: score.value for score in run.scores}
    lowest = sorted(scores_of[f"class {name}"] for name in names)[: classes.MOST]
    assert sorted(bars["y"]) == pytest.approx(sorted(100 - 100 * value for value in lowest))
    assert " ".join(page.words).count("class class number") == classes.MOST
    (trace,) = figures_of(page)["map"]
    assert trace["showlegend"] is False


def test_features_that_know_the_class_beat_inputs_that_do_not(whole):
    for evaluation, metric in Subject(whole[0]).headlines:
        difference = scores.encoder_less_raw(Subject(whole[0]), evaluation, metric)
        assert difference.low > 0


def test_scores_that_are_no_shares_are_told_in_their_own_unit(tmp_path):
    run = Run.create(tmp_path, "mine")
    run.describe({})
    run.add(Found((Score("mine", "rank", 3.25, -math.inf, math.inf, 1),)))
    page = page_of(run)
    assert "3.25 [-inf, inf]" in " ".join(page.words)
    assert "scores" not in page.ids


@pytest.mark.parametrize(
    ("said", "parsed"),
    [
        ("penalty=1e-3", ("penalty", 1e-3, [])),
        ("weights=uniform, k=20", ("k", 20.0, ["weights=uniform"])),
        ("", ("", None, [""])),
        ("way=x", ("", None, ["way=x"])),
    ],
)
def test_settings_are_read_from_their_words(said, parsed):
    assert choices.parsed(said) == parsed
