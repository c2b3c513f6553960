"""Sections of pages: of one's own, for which number of runs, of a run of pairs; and that no name turns into HTML."""

import base64
import json
import re
import shlex
import sys
from dataclasses import replace
from html import unescape
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from markupsafe import Markup

from likewise.cli import main
from likewise.data import Ids, Parts, Samples, Texts
from likewise.evaluation import KNN, CrossModalRetrieval, Features
from likewise.models import MLP, BagOfTokens, ConvNet
from likewise.report import (
    SECTIONS,
    Content,
    RunView,
    Section,
    definitions,
    folded,
    heading,
    in_settings,
    paragraphs,
    table,
    write_page,
)
from likewise.report.comparison import same_test
from likewise.report.elements import element, sentence
from likewise.report.sections import GeometrySection, MapSection, NearestTextsSection, PairsSection, UseSection
from likewise.report.sections.geometry import form_of
from likewise.report.sections.scores import lead
from likewise.report.sections.training import first_lines
from likewise.runs import Run
from likewise.runs.scores import Metric, Result, Score
from likewise.workflows import Silent, evaluate
from made_runs import Elements, made_run, pictured, thrice

HOSTILE = "\"'><img src=x onerror=alert(1)></script><script>alert(2)</script>{{ 7 * 7 }}"
TAGS = {"img", "script"}
PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "your-section.md"


def headings_of(path):
    return re.findall(r"<h2>(.*?)</h2>", path.read_text(encoding="utf-8"))


class OfOne(Section):
    def content(self, views):
        return Content("Mine", f"about {views[0].run.name}", paragraphs(["<i>"]))


class OfSeveral(Section):
    runs = "several"

    def content(self, views):
        return Content("Ours", f"about {len(views)} runs", "<u>plain</u>" + Markup("<em>markup</em>"))


class OfAny(Section):
    runs = "any"

    def __init__(self, most=3):
        self.most = most

    def content(self, views):
        return Content("Anyone's") if len(views) < self.most else None


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Runs with classes, features and scores, all of whose words are hostile."""
    folder, names = tmp_path_factory.mktemp("runs"), (HOSTILE, "plain")
    parts, features = pictured(names, (40, 40, 40), (1, 4, 4), 0.8)
    facts = {"recipe": HOSTILE, "device": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    facts["labels"] = {"kind": "classes", "names": names}
    quoted = HOSTILE.replace('"', '""')
    files = {"metrics.csv": f'step,epoch,"{quoted}"\n0,1,2.0\n1,1,1.0\n'}
    metric, made = Metric(HOSTILE, better="lower"), []
    for seed in range(2):
        loss = {"class_path": "likewise.losses.SupConLoss", "init_args": {HOSTILE: HOSTILE, "temperature": seed}}
        facts |= {"parts": {"loss": loss}, "seed": seed, "name": f"run {seed} <img src=x>"}
        run = made_run(folder, features, [KNN(3, "uniform")], files=files, **facts)
        run.add(Result((Score(HOSTILE, metric, 0.5, 0.4, 0.6, 9, notes=(HOSTILE,), settings={HOSTILE: HOSTILE}),)))
        made.append(RunView(run, parts, HOSTILE))
    return made


@pytest.mark.parametrize("count", [1, 2])
def test_no_name_turns_into_html(runs, tmp_path, count):
    views = runs[:1] if count == 1 else in_settings([of.run for of in runs])
    write_page(tmp_path / "page.html", views, title=HOSTILE)
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    found = Elements(text)
    assert "img" not in found.tags
    assert not any(name.startswith("on") for name, _ in found.attributes)
    data = text.count('<script type="application/json"')
    assert found.tags.count("script") == 3 + data > 3  # the drawing library, and what draws
    assert "{{ 7 * 7 }}" in text
    assert ">alert(2)" not in text


def test_whatever_an_element_is_given_stands_as_text():
    sample = {"tile": -1, "name": HOSTILE, "place": HOSTILE, "text": HOSTILE}
    for made in (
        table(["", HOSTILE], [["a", HOSTILE]], most=0, file=HOSTILE),
        table(["", HOSTILE], [["a", HOSTILE]]),
        heading(HOSTILE),
        folded(HOSTILE, HOSTILE),
        definitions([(HOSTILE, HOSTILE)]),
        paragraphs([HOSTILE], HOSTILE),
        element("cards", [(HOSTILE, HOSTILE, [HOSTILE])]),
        element("gallery", [([sample | {"tile": 1}], HOSTILE)]),
        element("mistakes", [(sample, HOSTILE, [])]),
        sentence("robustness", clean=HOSTILE),
    ):
        assert isinstance(made, Markup)
        assert TAGS.isdisjoint(Elements(made).tags)
        assert "onerror" not in dict(Elements(made).attributes)


def test_each_section_is_on_the_pages_that_it_is_for(runs, tmp_path):
    path = tmp_path / "page.html"
    sections = [OfSeveral(), OfAny(), OfOne()]
    write_page(path, runs[:1], sections=sections)
    assert headings_of(path) == ["Anyone&#39;s", "Mine"]
    write_page(path, runs, sections=sections)
    assert headings_of(path) == ["Ours", "Anyone&#39;s"]
    assert "&lt;u&gt;plain&lt;/u&gt;<em>markup</em>" in path.read_text(encoding="utf-8")
    write_page(path, runs, sections=[OfAny(most=2)])
    assert headings_of(path) == []


def test_a_section_that_returns_html_is_told_what_to_return(runs, tmp_path):
    class Wrong(Section):
        def content(self, views):
            del views
            return "<p>"

    with pytest.raises(ValueError, match=r"expected a Content or None from Wrong\.content, got str: return Content\("):
        write_page(tmp_path / "page.html", runs[:1], sections=[Wrong()])


@pytest.fixture
def example(tmp_path, monkeypatch):
    """The module of the documentation's example, where it can be imported."""
    (code,) = re.findall(r'```python title="my_sections.py"\n(.*?)```', PAGE.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "my_sections.py").write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_sections", raising=False)
    return import_module("my_sections")


def test_the_example_of_the_documentation_is_a_section(runs, tmp_path, example):
    path = tmp_path / "page.html"
    write_page(path, runs[:1], sections=[*(kind() for kind in SECTIONS), example.PredictedSection(most=1)])
    assert headings_of(path)[-2:] == ["Run", "Predicted classes"]
    predicted = runs[0].outcomes["kNN", "prediction", "encoder", "test"].values
    text = path.read_text(encoding="utf-8")
    assert f"<td>20</td><td>{int((predicted == 0).sum())}</td>" in text
    assert "1 of 2 rows" in text


@pytest.mark.usefixtures("example")
def test_the_sections_of_a_configuration_are_on_the_page(runs):
    run = runs[0].run
    own = {"class_path": "my_sections.PredictedSection", "init_args": {"most": 1}}
    sections = [{"class_path": "likewise.report.sections.FactsSection"}, own]
    evaluate(run, evaluations=[], sections=sections, progress=Silent())
    assert headings_of(run.report) == ["Run", "Predicted classes"]
    evaluate(run, evaluations=[], sections=own, progress=Silent())
    assert headings_of(run.report) == ["Predicted classes"]
    run.write(run.configuration.name, json.dumps({"sections": own}).encode())
    evaluate(run, evaluations=[], progress=Silent())  # as it was trained with
    assert headings_of(run.report) == ["Predicted classes"]
    evaluate(run, evaluations=[], sections=sections[0], progress=Silent())
    assert headings_of(run.report) == ["Run"]
    with pytest.raises(ValueError, match="expected a class of kind Section"):
        evaluate(run, evaluations=[], sections={"class_path": "likewise.SupConLoss"}, progress=Silent())
    run.write(run.configuration.name, json.dumps({"sections": {"class_path": "my_sections.Gone"}}).encode())
    with pytest.warns(UserWarning, match=r"the usual sections instead of those that the run was trained with.*Gone"):
        evaluate(run, evaluations=[], progress=Silent())
    assert {"Run", "Scores"} <= set(headings_of(run.report))


def test_sections_are_added_to_the_page_of_a_comparison(runs, tmp_path, monkeypatch):
    (tmp_path / "ours.py").write_text(
        "from likewise.report import Content, Section\n\n\nclass Ours(Section):\n    runs = 'any'\n\n"
        "    def content(self, views):\n        return Content('Ours')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    page = tmp_path / "compared.html"
    words = ["compare", *(str(of.run.folder) for of in runs), "--output", str(page)]
    assert main([*words, "--sections+", "ours.Ours"]) == 0
    assert headings_of(page)[0] == "Scores"
    assert headings_of(page)[-2:] == ["Runs", "Ours"]
    assert main([*words, "--sections", "ComparisonSection", "--sections+", "ours.Ours"]) == 0
    assert headings_of(page) == ["Scores", "Ours"]


def use_of(run):
    """Return the words of the page's commands, and its lines of Python."""
    body = UseSection().content([RunView(run)]).body
    *commands, code = map(unescape, re.findall("<code>(.*?)</code>", body, re.DOTALL))
    return list(map(shlex.split, commands)), code


def spec_of(encoder):
    arguments = {"input_shape": list(encoder.input_shape), "width": 8}
    return {"class_path": f"likewise.models.{type(encoder).__name__}", "init_args": arguments}


@pytest.mark.parametrize(
    ("encoder", "words"),
    [
        (ConvNet((3, 16, 16), width=8), ["photos/", "photo.jpg", "photos.parquet"]),
        (MLP((3,), width=8), ["vectors.npz", "queries.npz", "vectors.parquet"]),
        (BagOfTokens((), width=8), ["texts.csv", "queries.csv", "texts.parquet"]),
    ],
    ids=["images", "vectors", "texts"],
)
def test_a_page_says_how_its_encoder_is_used(encoder, words, tmp_path, monkeypatch):
    """With the path that it has from here, quoted where it must be; the line for elsewhere is tried."""
    monkeypatch.chdir(tmp_path)
    run = Run.create(Path("my runs"), "mine's")
    for kind in (None, "classes"):
        run.describe({"parts": {"encoder": spec_of(encoder)}, "labels": {"kind": kind, "names": []}})
        assert (UseSection().content([RunView(run)]) is None) == (kind is None)
        run.save_encoder(encoder)
        told, code = use_of(run)
        verbs = ["embed", "search", *(["predict"] if kind else []), "export"]
        assert [line[:3] for line in told] == [["likewise", verb, f"my runs/{run.name}"] for verb in verbs]
        assert told[0][3:] == [words[0], "--output", words[2]]
        assert told[1][3:] == [words[1], "--among", words[2], "--k", "5"]
        assert told[-1][3:] == ["--format", "safetensors" if words[0] == "texts.csv" else "onnx"]
        assert ("predict" in code) == bool(kind)
    compile(code, "page", "exec")
    run.finalize()
    exec("\n".join(code.splitlines()[:3]), found := {})  # noqa: S102 - a line of ours
    assert found["model"].feature_dim == encoder.feature_dim


def test_a_page_of_pairs_says_how_one_side_finds_the_other(tmp_path, monkeypatch):
    """Photos are kept, and asked for by a text; of two texts the other side asks, too."""
    monkeypatch.chdir(tmp_path)
    run = Run.create(Path("runs"), "pairs")
    encoders = ConvNet((3, 16, 16), width=8), BagOfTokens((), width=8)
    projected = [
        {"class_path": "likewise.models.Projected", "init_args": {"encoder": spec_of(encoder)}} for encoder in encoders
    ]
    run.save_encoder(encoders[0])
    for first, second, words in (
        (projected[0], projected[1], ("photos/", "photos.parquet", "queries.csv", '"photo.jpg"')),
        (projected[1], None, ("texts.csv", "texts.parquet", "queries.csv", '"a text"')),
    ):
        run.describe({"parts": {"encoder": first}, "second": {"encoder": second}})
        told, code = use_of(run)
        assert told[0][3:] == [words[0], "--output", words[1]]
        assert told[1][3:] == [words[2], "--side", "second", "--among", words[1], "--k", "5"]
        assert f"model.encode({words[3]})" in code
        assert f"model.search(\"a text\", '{words[1]}', side='second', k=5)" in code


def test_gradients_are_of_a_form_that_has_them():
    """SupCon's form "pairs" has a softmax for each pair, which the section does not show."""
    for options, form in (({}, "out"), ({"form": "in"}, "in"), ({"form": "pairs"}, None)):
        loss = {"class_path": "likewise.SupConLoss", "init_args": options}
        assert form_of(SimpleNamespace(metadata={"parts": {"loss": loss}})) == form


IMAGES, CAPTIONS = 12, 2


def view_of(folder, test, parts=None):
    """A run whose features, of every part, are those of the test part, and how its pairs rank."""
    return RunView(made_run(folder, thrice(test), [CrossModalRetrieval()], seed=0), parts)


@pytest.fixture
def view(tmp_path):
    """Images with two captions each; of the last image both are far off, and one has HTML in it."""
    image = torch.arange(IMAGES * CAPTIONS) // CAPTIONS
    words = [f"caption {row}" for row in range(len(image) - 1)] + ["<b>bold</b>"]
    texts = Samples(Texts(words), items=torch.arange(len(words)))
    pixels = torch.rand(IMAGES, 1, 8, 8)[image]
    samples = Samples(pixels, image % 3, ("ash", "elm", "oak"), items=image, counterparts=texts).numbered()
    clean = torch.eye(IMAGES)
    second = clean[image] + 0.1 * torch.randn(len(image), IMAGES, generator=torch.Generator().manual_seed(0))
    second[image == IMAGES - 1] = -clean[-1] + 0.01
    beside = Features(second, None, rows=samples.rows, items=texts.items)
    test = Features(clean[image], samples.labels, samples.names, samples.rows, items=image, counterparts=beside)
    return view_of(tmp_path, test, Parts(samples, samples, samples))


def test_queries_that_fail_come_first_in_both_directions(view, tmp_path):
    content = PairsSection().content([view])
    first, second = str(content.body).split("<h3>Second to first</h3>")
    assert first.index("<h3>First to second</h3>") == 0
    assert f"rank 23 of {IMAGES * CAPTIONS}" in first.partition("belongs to it")[0]  # the last image is the worst
    right, _, others = first.partition("caption 22")[2].partition("</div>")
    assert "belongs to it, cosine -" in right
    assert "nearest, cosine" in others
    assert first.count('<div class="gallery">') == second.count('<div class="gallery">') == 6
    assert "right, cosine 0.9" in first  # of one in the middle, which is found
    assert f"rank {IMAGES} of {IMAGES}" in second.partition("belongs to it")[0]
    assert "&lt;b&gt;bold" in second
    assert "<canvas" in first and "<canvas" in second  # noqa: PT018 - one condition, of both
    write_page(tmp_path / "page.html", [view])
    assert "<b>bold" not in re.sub(r"<script.*?</script>", "", (tmp_path / "page.html").read_text(), flags=re.DOTALL)


def test_texts_that_occur_again_are_shown_once(tmp_path):
    """Questions with two answers each: none is its own neighbour's twin, and nobody is told of labels."""
    words = [f"question {row // 2}" for row in range(24)]
    items, answers = torch.arange(24) // 2, Samples(Texts([f"answer {row}" for row in range(24)]))
    samples = Samples(Texts(words), items=items, counterparts=answers).numbered()
    vectors = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))[items]
    test = Features(vectors, None, items=items, counterparts=Features(-vectors, None))
    view = view_of(tmp_path, test, Parts(samples, samples, samples))
    content = NearestTextsSection().content([view])
    rows = re.findall("<tr>(.*?)</tr>", str(content.body), re.DOTALL)
    texts = [re.search(r"question \d+", row)[0] for row in rows[1:]]
    assert all(len(set(texts[start : start + 4][1:])) == 3 for start in range(0, 24, 4))
    assert "labels" not in rows[0] + content.sentence
    assert "All 12 test samples" in GeometrySection().content([view]).sentence
    assert re.findall("recall@1, (.*?)</span>", lead(view)) == ["first to second", "second to first"]


def test_the_right_answer_that_is_shown_is_the_nearest(tmp_path):
    second = torch.tensor([[-1.0, 0.2], [0.8, 0.6], [0.0, 1.0], [0.1, -1.0]])
    first = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    test = Features(first, None, items=torch.tensor([0, 0, 1, 2]), counterparts=Features(second, None))
    body = str(PairsSection().content([view_of(tmp_path, test)]).body).partition("<h3>Second")[0]
    assert sorted(re.findall(r"belongs to it, cosine (\S+)</div>", body)) == ["0.80", "1.00", "1.00"]


def test_both_sides_are_on_one_map(view):
    content = MapSection().content([view])
    assert content.sentence.startswith("Both sides of the pairs, each input once.")
    said = json.loads(re.search(r'id="map-data">(.*?)</script>', str(content.body), re.DOTALL)[1])
    side, classes = (np.frombuffer(base64.b64decode(said["colours"][of]["of"]), "<i2") for of in ("side", "class"))
    assert np.bincount(side).tolist() == [IMAGES, IMAGES * CAPTIONS]
    rows = np.frombuffer(base64.b64decode(said["rows"]), "<i4")
    assert classes.tolist() == (rows // CAPTIONS % 3).tolist()
    texts = [text for text, of in zip(said["texts"], side, strict=True) if of == 1]
    assert sorted(texts) == sorted(view.parts.test.counterparts.inputs.strings)
    assert {text for text, of in zip(said["texts"], side, strict=True) if of == 0} == {""}
    tiles = np.frombuffer(base64.b64decode(said["tiles"]), "<i4")
    assert sorted(tiles[side == 0].tolist()) == list(range(IMAGES))
    assert set(tiles[side == 1].tolist()) == {-1}


def test_other_runs_have_no_such_section(tmp_path):
    plain = Features(torch.eye(4), None)
    unranked = replace(plain, counterparts=plain)
    for features in (None, thrice(plain), thrice(unranked)):
        assert PairsSection().content([RunView(made_run(tmp_path, features))]) is None


def test_runs_on_other_counterparts_were_tested_on_other_samples(tmp_path):
    """English with German, and English with French, row by row."""
    views = []
    for name in ("de", "de", "fr"):
        lines, english = (Ids.of(f"two.{of}:{row}" for row in range(3)) for of in (name, "en"))
        test = Features(torch.eye(3), None, ids=english, counterparts=Features(torch.eye(3), None, ids=lines))
        views.append(view_of(tmp_path / str(len(views)), test))
    assert [same_test(views[0], view) for view in views[1:]] == [True, False]


@pytest.mark.parametrize("shape", [[], [7], [3, 32, 32]])
def test_no_first_line_writes_over_the_file_that_it_reads(shape, tmp_path):
    run = Run(tmp_path)
    run.weights.touch()
    encoder = {"class_path": "likewise.models.MLP", "init_args": {"input_shape": shape}}
    run.describe({"parts": {"encoder": encoder}, "labels": {"kind": "classes"}})
    commands, _ = first_lines(run)
    words = [command.split() for command in commands.values() if "--output" in command]
    assert len(words) == 2
    for each in words:
        assert each[each.index("--output") + 1] not in each[: each.index("--output")]
