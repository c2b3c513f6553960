"""The page of a run, from its folder alone."""

import base64
import csv
import io
import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from likewise.data import Ids
from likewise.diagnostics import plots, two_dimensional_map
from likewise.evaluation import KNN, Features, LinearProbe, Retrieval, raw_features
from likewise.evaluation.predictions import ACCURACY, COVERAGE, F1, HAMMING, MEAN_PRECISION
from likewise.report import RunView, write_page
from likewise.report.sections import ChoicesSection, LabelsSection, MapSection, SubModesSection, maps, scores, training
from likewise.runs.scores import ENCODER, RAW, Group, Metric, Result, Score, format_settings
from made_runs import Elements, made_run, pictured, thrice

pytestmark = pytest.mark.slow

NAMES = ("<cat>", '<a href="https://a.example">dog</a>', "cow</script>")


def page_of(run, parts=None):
    write_page(run.report, [RunView(run, parts)])
    return Elements(run.report.read_text(encoding="utf-8"))


def figures_of(page):
    """Return each figure's traces by the id of its element."""
    pattern = r'<div class="figure" id="([^"]+)"[^>]*></div><script type="application/json">(.*?)</script>'
    return {name: json.loads(said)["data"] for name, said in re.findall(pattern, page.text)}


def data_of(page, name):
    """Return what the page's scripts read under a name."""
    (said,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', page.text)
    return json.loads(said)


def decoded(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


def drawn_ids(page):
    """Return the ids of what is drawn, in its order."""
    return [name for name in page.ids if not name.startswith("section-") and name not in {"plotly", "album"}]


def thumbnails_of(page):
    """Return the pictures of a page's album, by their numbers."""
    said = data_of(page, "album")
    mosaic = np.asarray(Image.open(io.BytesIO(base64.b64decode(said["source"].partition(",")[2]))))
    height, width = said["height"], said["width"]
    rows = mosaic.reshape(-1, height, said["columns"], width, 3).swapaxes(1, 2)
    return rows.reshape(-1, height, width, 3)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run with everything, its parts, and its features."""
    loss = {"class_path": "likewise.losses.SupConLoss", "init_args": {"temperature": 0.1, "odd": "<i>"}}
    facts = {"parts": {"loss": loss, "inputs": None}, "labels": {"kind": "classes", "names": NAMES}, "seed": 7}
    facts |= {"versions": {"likewise": "0"}, "seconds": {"training": 1.5, "evaluation": 0.25}}
    metrics = "step,epoch,loss,rate\n0,1,2.0,0.1\n1,1,1.0,\n2,2,0.5,0.2\n"
    files = {"histograms.csv": "rank_drift_histogram,1,3,1,0\nrank_drift_histogram,2,0,4,4\n", "metrics.csv": metrics}
    parts, features = pictured(NAMES, (60, 30, 45), (3, 5, 4), 0.7)
    evaluations, beside = [KNN(), LinearProbe(), Retrieval()], [raw_features(parts)]
    folder, name = tmp_path_factory.mktemp("runs"), "a <b>run<b>"
    run = made_run(folder, features, evaluations, beside=beside, name=name, files=files, **facts)
    for epoch, value in ((1, 0.4), (2, 0.6)):
        knn = Score("kNN", ACCURACY, value, 0.3, 0.7, 30, part="validation")
        metric, rank = Metric("effective rank", "plain", "neither"), value + 0.2
        run.add(Result((knn, Score("features", metric, rank, rank, rank, 30, part="validation"))).at(epoch))
    return run, parts, features


@pytest.fixture(scope="module")
def page(whole):
    return page_of(whole[0], whole[1])


def test_the_page_names_no_address_outside_itself_and_may_fetch_nothing(page):
    named = [value for name, value in page.attributes if name in {"src", "href", "data", "action", "poster", "srcset"}]
    style = re.findall(r"<style>(.*?)</style>", page.text.split("<script", 1)[0], flags=re.DOTALL)
    assert all(address.startswith(("#section-", "data:text/csv;charset=utf-8;base64,")) for address in named)
    assert not re.search(r"url\(|@import", "".join(style))
    assert len(style) == 1
    (policy,) = [value for name, value in page.attributes if name == "content" and "default-src" in value]
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r"https?:|\*|connect-src", policy)


def test_the_page_holds_every_picture_and_the_library_once(page):
    pictures = ["map", "map-data", "wrong", "scores", "errors-kNN-accuracy", "errors-linear-probe-accuracy"]
    pictures += ["confusion", "similarities", "spectrum", "histograms", "curves", "validation", "choices"]
    assert drawn_ids(page) == pictures
    assert list(figures_of(page)) == pictures[3:]
    assert len(set(page.ids)) == len(page.ids)
    assert page.text.count(plots.script()) == 1


def test_facts_and_names_are_shown_as_text_and_no_figure_takes_one_for_a_tag(page):
    """Plotly draws tags in labels, links among them: names reach it escaped."""
    words = " ".join(page.words)
    for told in ("a <b>run<b>", "class <cat>", "odd=<i>", "temperature=0.1", "1.5 training, 0.2 evaluation", NAMES[1]):
        assert told in words
    assert page.text.count("</script>") == page.text.count("<script") == len(figures_of(page)) + 5
    traces = [trace for of in figures_of(page).values() for trace in of]
    drawn = json.dumps([{key: value for key, value in trace.items() if key != "legendgroup"} for trace in traces])
    assert "&lt;cat&gt;" in drawn
    assert not re.search(r"<(a|b|i|cat)\b", drawn)


def test_every_score_is_on_the_page_and_the_lead_has_differences(page, whole):
    words = " ".join(page.words)
    final = [score for score in whole[0].scores if score.part == "test"]
    assert len(final) == 2 * (4 + 4 + 3)
    for score in final:
        assert f"{100 * score.value:.2f} % [{100 * score.low:.1f}, {100 * score.high:.1f}]" in words
    outcomes = RunView(whole[0]).outcomes
    mean = {kind: float(outcomes["kNN", "accuracy", kind, "test"].values.double().mean()) for kind in (ENCODER, RAW)}
    card = page.words.index("kNN, accuracy")
    lead = " ".join(page.words[card : card + 6])
    assert f" {100 * mean[ENCODER]:.2f} % " in lead
    assert f"raw inputs {100 * mean[RAW]:.2f} % [" in lead
    assert f"difference {100 * (mean[ENCODER] - mean[RAW]):+.2f} [" in lead


def test_bars_are_errors_with_whiskers_inside_the_scale(page, whole):
    traces = figures_of(page)["errors-kNN-accuracy"]
    assert [bar["name"] for bar in traces] == [ENCODER, RAW]
    labels = whole[2].test.labels
    outcome = RunView(whole[0]).outcomes["kNN", "accuracy", ENCODER, "test"].values
    wrong = [100 * float(1 - outcome[labels == label].mean()) for label in range(3)]
    assert traces[0]["y"] == pytest.approx(wrong, abs=1e-4)
    for bar in traces:
        whiskers = zip(bar["y"], bar["error_y"]["array"], bar["error_y"]["arrayminus"], strict=True)
        assert all(-1e-9 <= y - below <= y <= y + above <= 100 + 1e-9 for y, above, below in whiskers)


def order_on(said, test):
    """Return the positions in the test part of the samples on a map, each of them once."""
    rows = decoded(said["rows"], np.int32).tolist()
    assert sorted(rows) == sorted(test.numbers.tolist())
    return torch.tensor([test.numbers.tolist().index(row) for row in rows])


def test_the_map_knows_each_point_its_place_its_picture_and_what_knn_said(page, whole):
    run, parts, features = whole
    said, test = data_of(page, "map-data"), features.test
    order = order_on(said, test)
    assert [panel["name"] for panel in said["panels"]] == [ENCODER, RAW]
    colours = {name: decoded(of["of"], np.int16) for name, of in said["colours"].items()}
    assert colours["class"].tolist() == test.labels[order].tolist()
    predicted = RunView(run).outcomes["kNN", "prediction", ENCODER, "test"]
    assert torch.equal(predicted.rows, test.numbers)
    assert colours["kNN's prediction"].tolist() == predicted.values[order].long().tolist()
    assert colours["kNN is"].tolist() == (predicted.values != test.labels)[order].long().tolist()
    assert said["colours"]["kNN is"]["names"] == ["right", "wrong"]
    pictures = thumbnails_of(page)
    for tile, at in zip(decoded(said["tiles"], np.int32), order.tolist(), strict=True):
        assert np.array_equal(pictures[tile], parts.test.inputs[at].movedim(0, -1).numpy())
    places = two_dimensional_map(test.vectors[order], "pca")
    scaled = (places - places.amin(dim=0)) / (places.amax(dim=0) - places.amin(dim=0))  # no axis has a unit
    drawn = [decoded(said["panels"][0]["layouts"]["PCA"][axis], np.uint16) / 65535 for axis in "xy"]
    assert np.allclose(np.stack(drawn, axis=1), scaled, atol=1e-5)


def test_a_map_says_how_many_samples_it_shows(whole, monkeypatch):
    monkeypatch.setattr(maps, "MAX_TSNE", 12)
    monkeypatch.setattr(maps, "MAX_PICTURES", 20)
    monkeypatch.setattr(maps, "MAX_PCA", 30)
    section = MapSection().content([RunView(whole[0], whole[1])])
    assert "12 of 45 test samples" in section.sentence
    assert "By PCA there are 30." in section.sentence
    assert "20 of them have a picture" in section.sentence
    said = data_of(Elements(section.body), "map-data")
    assert len(decoded(said["rows"], np.int32)) == 30
    assert len(decoded(said["tiles"], np.int32)) == 20
    lengths = {kind: len(decoded(of["x"], np.uint16)) for kind, of in said["panels"][0]["layouts"].items()}
    assert (lengths["t-SNE"], lengths["PCA"]) == (12, 30)


def test_a_map_of_some_samples_has_whole_classes_or_the_same_share_of_each():
    classes = torch.tensor([0, 0, 0, 0, 1, 1])
    order, whole = (maps.ordered(Features(torch.eye(6), classes), whole=of) for of in (False, True))
    assert [sorted(classes[order[:n]].tolist()) for n in (3, 6)] == [[0, 0, 1], [0, 0, 0, 0, 1, 1]]
    assert len(classes[whole[:2]].unique()) == 1


def test_each_class_that_is_large_enough_has_a_map_by_itself(whole, monkeypatch):
    view = RunView(whole[0], whole[1])
    assert SubModesSection().content([view]) is None  # 15 samples of each
    monkeypatch.setattr(maps, "MIN_MAP_SAMPLES", 15)
    section = SubModesSection().content([view])
    test = view.features.test
    said = data_of(Elements(section.body), "map-within-data")["maps"]
    assert [one["name"] for one in said] == list(NAMES)
    for label, one in enumerate(said):
        inside = (test.classes == label).nonzero().flatten()
        places = inside[order_on(one, test[inside])]
        taken_for = one["colours"]["kNN's prediction"]
        expected = [NAMES[of] for of in view.predicted(test)[places].tolist()]
        assert [taken_for["names"][of] for of in decoded(taken_for["of"], np.int16)] == expected
        assert set(one["panels"][0]["layouts"]) >= {"t-SNE", "PCA"}
    monkeypatch.setattr(maps, "MAX_CLASSES", 2)
    assert f"Shown are 2 of {len(NAMES)} classes" in SubModesSection().content([view]).sentence


def test_choices_show_all_that_was_tried_and_star_what_was_chosen(page, whole):
    candidates = [score for score in whole[0].scores if score.part == "validation" and score.epoch is None]
    candidates = [score for score in candidates if score.evaluation != "retrieval"]  # which has nothing to choose
    words = " ".join(page.words)
    assert all(format_settings(score.settings) in words for score in candidates)
    lines = figures_of(page)["choices"]
    drawn = [(x, round(y, 6)) for line in lines for x, y in zip(line["x"], line["y"], strict=True)]
    for score in candidates:
        value = float(next(of for of in score.settings.values() if not isinstance(of, str)))
        assert (value, round(100 * score.value, 6)) in drawn
    stars = sum(line["marker"]["symbol"].count("star") for line in lines)
    assert stars == page.words.count("chosen") == 4


def test_what_was_chosen_is_shown_however_much_was_tried(tmp_path):
    run = made_run(tmp_path)
    score = Score("mine", ACCURACY, 0.5, 0.4, 0.6, 10, part="validation")
    tried = [replace(score, settings={"width": 1000 - of}) for of in range(900)]
    run.add(Result((*tried, replace(score, settings={"width": 101}, part="test"))))
    _, first, *_ = re.findall("<tr>(.*?)</tr>", ChoicesSection().content([RunView(run)]).body)
    assert "width=101<" in first
    assert "chosen<" in first
    assert scores.axis({"weights": "uniform", "k": 20}) == ("k", 20.0, ["weights=uniform"])
    assert scores.axis({"way": "x"}) == ("", None, ["way=x"])


def test_axes_of_settings_and_of_small_values_have_no_prefixes():
    tried = [plots.Tried(10.0**-of, 90, 88, 92, chosen=False) for of in range(2, 6)]
    ticks = plots.choices({"probe": ("penalty", {"encoder": tried})}).layout.xaxis.ticktext
    assert ticks == ("1e-05", "0.0001", "0.001", "0.01")
    assert plots.curves({"rate": [("a", [(0, 4e-4)])]}).layout.yaxis.exponentformat == "power"


def test_curves_and_histograms_are_what_was_logged_and_what_validation_found(page):
    logged = {tuple(line["x"]): line["y"] for line in figures_of(page)["curves"]}
    assert logged == {(0, 1, 2): [2.0, 1.0, 0.5], (0, 2): [0.1, 0.2]}
    accuracy, rank = figures_of(page)["validation"]
    assert (accuracy["x"], accuracy["y"]) == ([1, 2], [40.0, 60.0])
    assert (rank["x"], rank["y"]) == ([1, 2], [pytest.approx(0.6), pytest.approx(0.8)])
    assert "directions that the validation features use" in " ".join(page.words)
    (heat,) = figures_of(page)["histograms"]
    assert (heat["x"], heat["z"]) == ([1, 2], [[75, 0], [25, 50], [0, 50]])  # shares of each epoch


def test_a_long_curve_keeps_its_ends(monkeypatch):
    monkeypatch.setattr(training, "MAX_POINTS", 10)
    points = [(step, float(step)) for step in range(95)]
    thinned = training.thinned(points)
    assert (thinned[0], thinned[-1]) == (points[0], points[-1])
    assert 8 <= len(thinned) <= 11
    assert set(thinned) <= set(points)


def test_wrong_predictions_are_shown_with_their_nearest_training_images(page, whole):
    """The first pictures of each row are the test image itself, and the training image nearest to it."""
    run, parts, features = whole
    (rows,) = re.findall(r'<div id="wrong">(.*?)</section>', page.text, flags=re.DOTALL)
    shown = [list(map(int, re.findall(r'data-tile="(\d+)"', row))) for row in rows.split('<div class="row">')[1:]]
    pictures = thumbnails_of(page)
    predicted = RunView(run).outcomes["kNN", "prediction", ENCODER, "test"].values
    wrong = (predicted != features.test.labels).nonzero().flatten()[:8].tolist()
    assert len(shown) == len(wrong) > 2
    for tiles, row in zip(shown, wrong, strict=True):
        assert np.array_equal(pictures[tiles[0]], parts.test.inputs[row].movedim(0, -1).numpy())
        units = torch.nn.functional.normalize(features.train.vectors)
        nearest = int((units @ torch.nn.functional.normalize(features.test.vectors[row], dim=0)).argmax())
        assert np.array_equal(pictures[tiles[1]], parts.train.inputs[nearest].movedim(0, -1).numpy())


def files_of(page):
    """Return the rows of each list that the page holds, by its file's name."""
    pattern = r'<a download="([^"]+)" href="data:text/csv;charset=utf-8;base64,([^"]*)"'
    contents = {name: base64.b64decode(of).decode() for name, of in re.findall(pattern, page.text)}
    return {name: list(csv.reader(io.StringIO(text, newline=""), strict=True)) for name, text in contents.items()}


def test_lists_are_files_with_every_sample_by_its_id(tmp_path):
    """Against all pairs and all wrong predictions; no data is at hand, and ids are as file names may be."""
    generator = torch.Generator().manual_seed(3)
    odd = ['say "a", b.jpg', "two\nlines\r.jpg", "<b>.jpg", "1003", "\udcff.jpg", f"{'deep/' * 30}IMG_0274.jpg"]
    names = [*odd, *(f"cat/{row}.jpg" for row in range(84))]
    labels = torch.arange(90) % 3
    vectors = torch.nn.functional.one_hot(labels, 3) + torch.randn(90, 3, generator=generator)
    test = Features(vectors, labels, ("ash", "elm", "oak"), torch.arange(90) + 500, ids=Ids.of(names))
    run = made_run(tmp_path, thrice(test))
    run.add(KNN(3, "uniform")(test[torch.arange(0, 90, 2)], test[torch.arange(0)], test))
    page = page_of(run)
    files, called = files_of(page), [name.replace("\udcff", r"\udcff") for name in names]
    pairs = zip(called, labels.tolist(), RunView(run).predicted(test).tolist(), strict=True)
    wrong = [[name, test.names[true], test.names[said]] for name, true, said in pairs if true != said]
    assert files["mistakes.csv"] == [["id", "class", "predicted"], *wrong]
    assert len(wrong) > 8
    units = torch.nn.functional.normalize(vectors)
    cosines, same = units @ units.T, labels.unsqueeze(1) == labels
    others = same & ~torch.eye(90, dtype=torch.bool)
    for file, alike, sign in (("hard-positives.csv", others, 1), ("hard-negatives.csv", ~same, -1)):
        head, *rows = files[file]
        assert head == ["cosine", "id", "labels", "other id", "other labels"]
        places = [[called.index(row[place]) for place in (1, 3)] for row in rows]
        assert len({place for pair in places for place in pair}) == 2 * len(rows) > 30
        for (cosine, _, label, _, other), (one, two) in zip(rows, places, strict=True):
            hardest = (sign * cosines[one]).masked_fill(~alike[one], torch.inf).min() * sign
            assert float(cosine) == pytest.approx(float(cosines[one, two]), abs=6e-4)
            assert float(cosine) == pytest.approx(float(hardest), abs=6e-4)
            assert (label, other) == (test.names[labels[one]], test.names[labels[two]])
        assert f"cosine {rows[0][0]}" in " ".join(page.words)  # in the gallery
    said = data_of(page, "map-data")
    names = [called[row - 500] for row in decoded(said["rows"], np.int32).tolist()]
    assert [f"id {name}" if name == "1003" else name for name in names] == said["ids"]
    assert not re.search(r"\brow \d", " ".join(page.words))


def test_confusion_is_counted(page, whole):
    (heat,) = figures_of(page)["confusion"]
    predicted = RunView(whole[0]).outcomes["kNN", "prediction", ENCODER, "test"].values.long()
    counts = np.zeros((3, 3))
    for true, said in zip(whole[2].test.labels.tolist(), predicted.tolist(), strict=True):
        counts[true, said] += 1
    assert np.allclose(heat["z"], counts / counts.sum(axis=1, keepdims=True))
    row = page.words.index("taken for")
    assert str(int((counts - np.diag(np.diag(counts))).max())) in page.words[row : row + 8]


def test_a_run_without_its_data_has_no_pictures_and_says_so_nowhere(whole):
    page = page_of(whole[0])
    assert {"scores", "map", "similarities", "choices"} <= set(page.ids)
    assert {"wrong", "album"}.isdisjoint(page.ids)
    assert set(decoded(data_of(page, "map-data")["tiles"], np.int32)) == {-1}


def test_a_collapsed_encoder_has_a_page_that_says_so(tmp_path):
    labels = torch.arange(40) % 2
    features = Features(torch.full((40, 8), 0.3), labels, ("cat", "dog"))
    page = page_of(made_run(tmp_path, thrice(features), [KNN()]))
    words = " ".join(page.words)
    assert words.count("Collapsed: ") == 2
    for layout in data_of(page, "map-data")["panels"][0]["layouts"].values():
        assert set(decoded(layout["x"], np.uint16)) == set(decoded(layout["y"], np.uint16)) == {0}
    assert not re.search(r"\bnan\b", words, flags=re.IGNORECASE)


@pytest.mark.parametrize("labels", [None, torch.rand(30, 7) > 0.5])
def test_other_labels_and_none_have_a_page_too(tmp_path, labels):
    names = () if labels is None else tuple(f"<{name}>" for name in range(7))
    features = Features(torch.randn(30, 4), labels, names, torch.arange(30) + 500)
    files = {"metrics.csv": "step,epoch,loss\n0,0,2.0\n1,0,1.0\n"}
    facts = {"source": "<mine>.npz", "labels": {"kind": None if labels is None else "label sets", "names": names}}
    page = page_of(made_run(tmp_path, thrice(features), files=files, **facts))
    assert drawn_ids(page) == ["map", "map-data", "spectrum", "curves"]
    said = data_of(page, "map-data")
    assert sorted(decoded(said["rows"], np.int32)) == list(range(500, 530))
    frequent = [] if labels is None else labels.sum(0).argsort(descending=True, stable=True).tolist()
    assert list(said["colours"]) == [f"<{label}>" for label in frequent]
    for label, colour in zip(frequent, said["colours"].values(), strict=True):
        has = dict(zip(range(500, 530), labels[:, label].tolist(), strict=True))
        of = zip(decoded(said["rows"], np.int32), decoded(colour["of"], np.int16), strict=True)
        assert all(colour["names"][category] == ("with" if has[row] else "without") for row, category in of)
    if labels is not None:
        first = int(decoded(said["rows"], np.int32)[0]) - 500
        words = [names[label] for label in labels[first].nonzero().flatten().tolist()]
        assert said["labels"][0].startswith(" + ".join(words[:5]) or "no label")
    assert "<mine>.npz" in " ".join(page.words)


def test_many_classes_do_not_flood_the_page(tmp_path, monkeypatch):
    monkeypatch.setattr(maps, "MAX_TSNE", 60)
    names = tuple(f"class number {label}" for label in range(300))
    labels = torch.arange(600) % 300
    vectors = torch.randn(600, 16)
    vectors[labels < 280] += 9 * torch.randn(300, 16)[labels[labels < 280]]  # the last 20 classes are noise
    features = Features(vectors, labels, names)
    run = made_run(tmp_path, thrice(features))
    run.add(KNN(k=3, weights="uniform")(*(features[torch.arange(first, first + 300)] for first in (0, 300, 300))))
    page = page_of(run)
    bars = figures_of(page)["errors-kNN-accuracy"][0]
    assert len(bars["y"]) == scores.MAX_CLASSES
    assert "Shown are 40 of 300 classes" in " ".join(page.words)
    scores_of = {str(score.group): score.value for score in run.scores}
    lowest = sorted(scores_of[f"class {name}"] for name in names)[: scores.MAX_CLASSES]
    assert sorted(bars["y"]) == pytest.approx(sorted(100 - 100 * value for value in lowest))
    assert " ".join(page.words).count("class class number") == scores.MAX_CLASSES
    said = data_of(page, "map-data")
    assert said["most"] < len(said["colours"]["class"]["names"]) == 300  # without a legend
    (heat,) = figures_of(page)["confusion"]
    assert len(heat["z"]) == scores.MAX_CLASSES


def test_scores_that_are_no_shares_are_told_in_their_own_unit(tmp_path):
    run = made_run(tmp_path)
    assert drawn_ids(page_of(run)) == []
    errors = (Score("mine", COVERAGE, 1.83, 1.66412, 2.0, 9), Score("mine", HAMMING, 0.1, 0.1, 0.2, 9))
    run.add(Result((Score("mine", Metric("rank", "plain"), 3.25, -math.inf, math.inf, 1), *errors)))
    page = page_of(run)
    assert "3.250 [-inf, inf]" in " ".join(page.words)
    assert "1.830 [1.664, 2.000]" in " ".join(page.words)
    assert {"mine, coverage error (lower is better)", "mine, Hamming loss (lower is better)"} <= set(page.words)
    assert "mine, rank (lower is better)" not in page.words
    assert "scores" not in page.ids


def test_scores_of_frequent_and_rare_labels_stand_above_those_of_each(tmp_path):
    run = made_run(tmp_path)
    thirds = [("head labels", 0.9), ("middle labels", 0.8), ("tail labels", 0.7)]
    groups = {name: Group("frequency", name) for name, _ in thirds}
    found = [Score("kNN", MEAN_PRECISION, value, 0.5, 1.0, 9, group=groups[name]) for name, value in thirds]
    raw = [Score("kNN", MEAN_PRECISION, 0.6, 0.5, 1.0, 9, features=RAW, group=groups["tail labels"])]
    each = [Score("kNN", F1, 0.4, 0.3, 0.5, 9, group=Group("label", name)) for name in ("oil", "tail labels")]
    run.add(Result((*found, *each)))
    run.add(Result(tuple(raw)))
    section = LabelsSection().content([RunView(run)])
    assert "third with the most training samples" in section.sentence
    first = section.body.partition("<h3>")[0]
    assert re.findall(r"<t[hd](?: [^>]*)?>([^<]*)", first) == [
        *("", "kNN, mAP", "kNN, mAP, raw inputs"),
        *("head labels", "90.00 % [50.0, 100.0]", ""),
        *("middle labels", "80.00 % [50.0, 100.0]", ""),
        *("tail labels", "70.00 % [50.0, 100.0]", "60.00 % [50.0, 100.0]"),
    ]
