"""The page of a run of pairs: what is nearest in both directions, first where it fails, and both sides on one map."""

import base64
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from likewise.data import Ids, Parts, Samples, Texts
from likewise.evaluation import CrossModalRetrieval, Features
from likewise.report import RunView, write_page
from likewise.report.comparison import same_test
from likewise.report.sections import GeometrySection, MapSection, NearestTextsSection, PairsSection
from likewise.report.sections.scores import lead
from made_runs import made_run, thrice

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
