"""Zero-shot classification from class names as texts, against scikit-learn and plain loops, and its refusals."""

from dataclasses import replace

import pytest
import torch
from sklearn.metrics import recall_score, top_k_accuracy_score
from torch.nn import functional

from likewise.data import Samples, Texts
from likewise.evaluation import FeatureParts, Features, Origin, ZeroShot, applicable
from likewise.evaluation.intervals import wilson

NAMES = ("red_fox", "oak", "blue whale", "Ash", "elm", "newt", "yak")
SPOKEN = "red fox oak blue whale ash elm newt yak a photo of the"
DRAWN = torch.randn(13, 6, generator=torch.Generator().manual_seed(0))
WORDS = dict(zip(SPOKEN.split(), DRAWN, strict=True))


def encode(texts):
    """A bag of words, as a second tower might be: words that it does not know are nothing."""
    bags = [[WORDS.get(word, torch.zeros(6)) for word in text.casefold().split()] for text in texts.strings]
    return torch.stack([sum(bag, torch.zeros(6)) for bag in bags])


def part_of(part, count=70, seed=0, texts=("a photo of the Red fox", "the oaks, an OAK", "blue", "whale", "ash")):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) ** 2 % 7
    clean = encode(Texts(name.replace("_", " ") for name in NAMES))[labels]
    vectors = clean + 1.5 * torch.randn(count, 6, generator=generator)
    others = Samples(Texts([texts[row % len(texts)] for row in range(count)])).numbered()
    side = Features(vectors, None, part=part, origin=Origin(others, encode))
    return Features(vectors, labels, NAMES, part=part, counterparts=side)


@pytest.fixture
def parts():
    return FeatureParts(*(part_of(part, seed=seed) for seed, part in enumerate(("train", "validation", "test"))))


@pytest.mark.parametrize("templates", [["{}"], ["a {}", "photo of the {}"]])
def test_scores_are_those_of_scikit_learn(parts, templates):
    found = ZeroShot(templates=templates)(*parts)
    test = parts.test
    prototypes = []
    for name in NAMES:
        texts = [template.replace("{}", name.replace("_", " ")) for template in templates]
        prototypes.append(functional.normalize(encode(Texts(texts))).mean(dim=0))
    cosines = functional.normalize(test.vectors) @ functional.normalize(torch.stack(prototypes)).T
    said = cosines.argmax(1)
    right = said == test.classes
    assert found["accuracy"].value == pytest.approx(float(right.double().mean()))
    assert found["top-5 accuracy"].value == top_k_accuracy_score(test.classes, cosines, k=5, labels=range(7))
    recall = recall_score(test.classes, said, average="macro", labels=test.classes.unique())
    assert found["macro accuracy"].value == pytest.approx(recall)
    outcomes = {of.metric: of.values for of in found.outcomes}
    assert torch.equal(outcomes["accuracy"], right.float())
    assert float(outcomes["macro accuracy"].double().mean()) == pytest.approx(found["macro accuracy"].value)
    assert [score.part for score in found.candidates] == ["validation"]


def test_classes_with_names_that_no_training_text_has_stand_apart(parts):
    """Whole words count, whatever their case, all of a name's in a row; not 'oaks', but 'OAK'; not blue, and whale."""
    found = ZeroShot()(*parts)
    test = parts.test
    unseen = torch.isin(test.classes, torch.tensor([2, 4, 5, 6]))
    own = {score.group.name: score for score in found.scores if score.group.kind == "names"}
    right = next(of.values.bool() for of in found.outcomes if of.metric == "accuracy")
    for name, among in (("seen", ~unseen), ("unseen", unseen)):
        hits, count = int(right[among].sum()), int(among.sum())
        score = own[name]
        assert (score.value, score.count) == (hits / count, count)
        assert (score.low, score.high) == pytest.approx(wilson(hits, count))
        assert score.notes == ({"seen": "chance among them 33.3 %", "unseen": "chance among them 25 %"}[name],)
    notes = " ".join(found["accuracy"].notes)
    assert "classes with unseen names" in notes
    assert "no better than chance" not in notes
    noise = replace(test, vectors=torch.randn(70, 6, generator=torch.Generator().manual_seed(9)))
    told = ZeroShot()(parts.train, parts.validation, noise)["accuracy"].notes
    assert "no better than chance" in next(note for note in told if "unseen" in note)
    known = replace(parts.validation, counterparts=part_of("validation", texts=["elm newt"]).counterparts)
    for refit, chance in ((False, 25), (True, 50)):  # elm and newt are known where validation is trained on too
        scores = ZeroShot()(parts.train, known, test, refit=refit).scores
        assert [of.notes for of in scores if of.group.name == "unseen"] == [(f"chance among them {chance} %",)]
    every = part_of("train", texts=tuple(name.replace("_", " ") for name in NAMES))
    assert ZeroShot()(every, parts.validation, test)["accuracy"].notes == ("chance 14.3 %",)


def test_names_that_the_encoder_does_not_know_favour_no_class(parts):
    """All classes are the same to it then, and none is the first of them by its number."""
    found = ZeroShot(classes=list("tuvwxyz"))(*parts)
    said = next(of.values for of in found.outcomes if of.metric == "prediction").unique()
    assert len(said) == 1
    assert said[0] != 0
    with_names = ZeroShot(classes=[name.replace("_", " ") for name in NAMES])(*parts)
    assert with_names.scores == ZeroShot()(*parts).scores


def test_it_is_made_by_name_only_and_refuses_what_it_cannot_do(parts):
    assert "zero-shot" not in [one.name for one in applicable(parts)]
    assert applicable(parts, [ZeroShot()])[0].name == "zero-shot"
    test = parts.test
    bare = replace(test, counterparts=replace(test.counterparts, origin=None))
    vectors = replace(test.counterparts, origin=Origin(Samples(torch.rand(70, 6)).numbered(), encode))
    unread = [bare, *(replace(test, counterparts=of) for of in (None, vectors))]
    for part, why in (
        (replace(test, labels=None), "it needs one class a sample, and there are no labels"),
        *((of, "it needs pairs whose second side is texts") for of in unread),
        (test[torch.arange(0)], "it needs test samples of 2 classes or more, and there are 0 of 7"),
    ):
        with pytest.raises(ValueError, match=f"ZeroShot does not apply: {why}"):
            ZeroShot()(part, part, part)
    with pytest.raises(ValueError, match="it needs a name for each of 7 classes, and there are 1"):
        ZeroShot(classes=["one"])(*parts)
    for templates in ([], ["a photo"]):
        with pytest.raises(ValueError, match=r"expected templates with \{\} for the name"):
            ZeroShot(templates=templates)
