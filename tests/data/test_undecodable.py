"""Images whose header reads and whose body cannot be read: never trained on, never evaluated, counted once."""

import json
import re
import warnings

import numpy as np
import pytest
import torch
from command_worker import start_together
from PIL import Image

from likewise.cli import main
from likewise.data import (
    Balanced,
    Chain,
    Episodes,
    Folder,
    NoAugmentation,
    Parts,
    Samples,
    Stratified,
    Views,
    derive_seed,
    inputs_for_encoder,
    parts_of_run,
    some_inputs,
)
from likewise.data.augmentation import Augmentation
from likewise.data.batches import fit_augmentation
from likewise.data.by_class import rotated
from likewise.data.lazy_inputs import readable, unreadable
from likewise.evaluation import load_features, raw_features
from likewise.evaluation.encoding import features_of
from likewise.models import MLP, ConvNet, Projected, ProjectionHead
from likewise.runs import Run
from likewise.training.data import ORDER, Loader, Position
from likewise.workflows.progress import PRINTED
from likewise.workflows.scoring import encode_parts

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*LeafSpec.*", "ignore:.*does not have many workers.*"),
    pytest.mark.filterwarnings("ignore:an image that cannot be read"),
]
CLASSES, EACH = ("ash", "elm", "oak"), 12
BROKEN = {"ash/3.jpg", "ash/7.jpg", "ash/8.jpg", "oak/11.jpg"}


def photos(root, broken=BROKEN, each=EACH):
    """Write one photo of each colour; those that are broken keep their header and lose the end of their body."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (root / name).mkdir(parents=True)
        for k in range(each):
            pixels = rng.integers(0, 60, (32, 32, 3)) + np.array([60, 5 * k, 60 * number])
            file = root / name / f"{k}.jpg"
            Image.fromarray(pixels.astype(np.uint8)).save(file, quality=90)
            if f"{name}/{k}.jpg" in broken:
                file.write_bytes(file.read_bytes()[: file.stat().st_size * 2 // 3])
    return root


def samples_of(root, **options):
    """Read the photos on demand, in the order of their names."""
    return Folder(str(root), size=32, memory=0, **options).load()


def plainly(root, samples):
    """Decode every photo that can be, by its row: its class and its pixels, for an oracle."""
    names = [str(samples.inputs.all_rows.items[row]) for row in samples.inputs.rows.tolist()]
    whole = {}
    for row, name in enumerate(names):
        of = "/".join(name.split("/")[-2:])
        if of not in BROKEN:
            with Image.open(root / of) as image:
                whole[row] = (CLASSES.index(of.split("/")[0]), np.asarray(image.convert("RGB")))
    return whole


BATCHES = {
    "shuffled": lambda: Views(batch_size=12),
    "balanced": lambda: Views(batch_size=12, sampler=Balanced(4)),
    "episodes": lambda: Episodes(ways=3, shots=1, queries=3, episodes=2, steps=3),
}


@pytest.fixture
def root(tmp_path):
    return photos(tmp_path / "photos")


@pytest.mark.parametrize("kind", BATCHES)
def test_another_sample_of_its_class_takes_its_place(kind, root):
    samples, batches = samples_of(root), BATCHES[kind]()
    whole, together = plainly(root, samples), 12
    for epoch in range(3):
        loader = Loader(samples, batches, seed=5, position=lambda of=epoch: Position(epoch=of))
        drawn = batches.order(samples, seed=derive_seed(5, ORDER), epoch=epoch)
        met = {row for row in drawn.flatten().tolist() if row not in whole}
        for batch, order in zip(loader, drawn, strict=True):
            rows = batch["sample_index"].tolist()
            for place, (row, first) in enumerate(zip(rows, order.tolist(), strict=True)):
                label, pixels = whole[row]
                assert label == batch["labels"][place] == samples.labels[first]
                assert np.array_equal(batch["inputs"][place].permute(1, 2, 0).numpy(), pixels)
                assert row == first or first not in whole
            for start in range(0, len(rows), together):
                assert len(set(rows[start : start + together])) == together
        assert met
        assert met <= set(loader.lost)
        assert {name.split("photos/")[1] for name in loader.lost.values()} <= BROKEN


@pytest.mark.slow
@pytest.mark.parametrize("kind", BATCHES)
def test_who_takes_a_place_does_not_depend_on_workers_processes_or_a_resume(kind, root):
    samples, batches = samples_of(root), BATCHES[kind]()

    def equal(batches, others):
        return all(torch.equal(a, b) for pair in zip(batches, others, strict=True) for a, b in zip(*pair, strict=True))

    def given(workers=0, **place):
        loader = Loader(samples_of(root), batches, seed=5, position=lambda: Position(epoch=1, **place), workers=workers)
        return [(batch["inputs"], batch["sample_index"], batch["labels"]) for batch in loader], loader.lost

    alone, lost = given()
    for workers in (1, 2):
        others, theirs = given(workers)
        assert theirs == lost
        assert equal(alone, others)
    shares = [given(rank=rank, processes=2) for rank in range(2)]
    assert {**shares[0][1], **shares[1][1]} == lost
    for whole, *parts in zip(alone, *(batches for batches, _ in shares), strict=True):
        assert all(torch.equal(torch.cat(of), one) for *of, one in zip(*parts, whole, strict=True))
    rest, _ = given(batch=1)
    assert equal(alone[1:], rest)
    assert len(samples) == 36


def test_who_takes_a_place_changes_with_the_batch_and_the_seed(root):
    """A broken photo is drawn once an epoch."""
    samples, takers = samples_of(root), set()
    for seed in range(3):
        loader = Loader(samples, Views(batch_size=12), seed=seed)
        orders = loader.batches.order(samples, seed=derive_seed(seed, ORDER), epoch=0)
        for batch, order in zip(loader, orders, strict=True):
            takers |= set(batch["sample_index"][order == list(samples.ids).index("oak/11.jpg")].tolist())
    assert len(takers) > 1


def test_without_classes_any_other_sample_takes_its_place(root):
    samples = samples_of(root, label="none")
    for batch in Loader(samples, Views(batch_size=12), seed=0):
        assert len(set(batch["sample_index"].tolist())) == 12
        assert bool(batch["inputs"].flatten(1).any(dim=1).all())
        assert bool(readable(samples.inputs, batch["sample_index"]).all())


def test_where_a_class_has_no_other_sample_one_of_it_comes_twice_and_never_one_of_another_class(tmp_path):
    """Four of a class, all in the episode, one of them broken; and a class without any whole photo."""
    root = photos(tmp_path / "few", broken={"ash/3.jpg"}, each=4)
    (batch,) = Loader(samples_of(root), Episodes(ways=3, shots=1, queries=3, episodes=1, steps=1), seed=0)
    labels = batch["labels"].view(3, 4)
    assert bool((labels == labels[:, :1]).all())
    assert len(set(batch["sample_index"].tolist())) == 11
    assert bool(batch["inputs"].flatten(1).any(dim=1).all())
    root = photos(tmp_path / "none", broken={f"ash/{k}.jpg" for k in range(4)}, each=4)
    for batch in Loader(samples_of(root), Views(batch_size=4), seed=0):
        assert bool((batch["labels"] > 0).all())
        assert torch.equal(batch["labels"], samples_of(root).labels[batch["sample_index"]])
    for workers in (0, 1):
        episodes = Episodes(ways=3, shots=1, queries=3, episodes=1, steps=1)
        with pytest.raises(ValueError, match=r"^expected an image of every class .*got none .*ash/.\.jpg: repair"):
            list(Loader(samples_of(root), episodes, seed=0, workers=workers))


def test_joined_and_turned_rows_know_what_cannot_be_read(root):
    parts = Stratified()(samples_of(root))
    joined = parts.refitted().train[torch.tensor([20, 3, 24, 0, 11])]
    turned = rotated(samples_of(root))[torch.tensor([0, 40, 80, 3, 7, 43, 115, 107])]
    plain = list(samples_of(root).ids)
    assert list(turned.ids)[:3] == [plain[0], f"{plain[4]}, turned 90°", f"{plain[8]}, turned 180°"]
    for samples in (joined, turned, parts.refitted().train):
        rows = torch.arange(len(samples)).flip(0)
        black = (samples.inputs[rows].flatten(1).sum(dim=1) == 0).nonzero().flatten().tolist()
        found = unreadable(samples.inputs, rows)
        assert [one.place for one in sorted(found)] == black
        assert all(one.name.split("photos/")[1] in BROKEN for one in found)
    assert len(some_inputs(samples_of(root), 36)) == 32


def test_a_few_that_cannot_be_read_do_not_stand_for_all(tmp_path):
    broken = {"ash/0.jpg", "oak/9.jpg", "oak/11.jpg"}  # the first, and the last by either order
    root = photos(tmp_path / "photos", broken)
    assert len(some_inputs(samples_of(root), 2)) == 33


def test_images_in_files_are_read_by_the_thousand_only_for_statistics(root):
    samples = samples_of(root)
    assert len(inputs_for_encoder(samples, observed=False)) < len(inputs_for_encoder(samples, observed=True)) == 32
    seen = []

    class Fitted(Augmentation):
        def change(self, inputs, _):
            return inputs

        def fit(self, inputs):
            seen.append(len(inputs))

    class FittedChain(Chain):
        def fit(self, inputs):
            seen.append(len(inputs))

    for augmentation in (Fitted(), Chain([NoAugmentation(), Fitted()]), FittedChain([NoAugmentation()])):
        fit_augmentation(augmentation, samples)
    assert seen == [32, 32, 32]
    assert not any(augmentation.needs_fit for augmentation in (NoAugmentation(), Chain([NoAugmentation()])))


@pytest.mark.parametrize("memory", [0, 1])
def test_features_have_no_row_for_it(memory, root):
    """Read on demand as well as at once: the same features of the same samples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        samples = Folder(str(root), size=32, memory=memory).load()
    torch.manual_seed(0)
    encoder = ConvNet((3, 32, 32), width=4)
    features = features_of(samples, encoder, "train")
    assert features.counts.tolist() == [9, 12, 11]
    whole = plainly(root, samples_of(root))
    for vector, label, (expected, pixels) in zip(features.vectors, features.labels, whole.values(), strict=True):
        assert label == expected
        one = torch.from_numpy(pixels.copy()).permute(2, 0, 1)[None]
        assert torch.allclose(vector, encoder.encode(one)[0], atol=1e-5)
    if memory == 0:
        assert features.numbers.tolist() == list(whole)
        assert features[torch.tensor([5])].numbers.tolist() == [list(whole)[5]]


def test_those_of_the_other_side_of_pairs_are_counted_with_the_features(root, tmp_path):
    photographs = samples_of(root)
    pairs = Samples(torch.rand(len(photographs), 4), counterparts=photographs)
    run = Run.create(tmp_path, "mine")
    run.describe({})
    every = torch.arange(len(pairs))
    parts = Parts(*(pairs[every % 3 == of] for of in range(3)))
    encoders = MLP((4,), width=6), Projected(ConvNet((3, 32, 32), width=2), ProjectionHead(8, out_dim=6))
    features = encode_parts(run, encoders[0], parts, PRINTED, second=encoders[1])
    assert sum(map(len, features)) == len(pairs) - len(BROKEN)
    assert {name.split("photos/")[1] for name in run.metadata["undecodable"].values()} == BROKEN


WORDS = ["train", "--data", "Folder", "--data.path", "photos", "--data.size", "32", "--data.memory", "0"]
WORDS += ["--encoder", "ConvNet", "--encoder.width", "4", "--batches.batch_size", "12", "--trainer.max_epochs", "1"]
WORDS += ["--trainer.accelerator", "cpu", "--trainer.enable_progress_bar", "false"]


@pytest.mark.slow
def test_a_run_counts_it_once_names_it_at_its_end_and_evaluates_none(root, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    assert main([*WORDS, "--validation_epochs", "1", "--evaluations", "KNN"]) == 0
    said = capfd.readouterr().err
    (told,) = (line for line in said.splitlines() if "cannot be read" in line)
    assert told.startswith("warning: left out 4 images, which cannot be read: ")
    assert said.splitlines()[-1] == told
    (folder,) = (tmp_path / "runs").iterdir()
    run = Run.open(folder)
    assert {name.split("photos/")[1] for name in run.metadata["undecodable"].values()} == BROKEN
    page = " ".join(re.sub("<[^>]*>", " ", run.report.read_text()).split())
    assert "images that cannot be read 4" in page
    features, (parts, _) = load_features(run.embeddings), parts_of_run(run)
    assert sum(map(len, features)) == 32
    whole = plainly(root, samples_of(root))
    for part, own in zip(features, (parts.train, parts.validation, parts.test), strict=True):
        assert [whole[row][0] for row in part.numbers.tolist()] == part.classes.tolist()
        assert set(part.numbers.tolist()) == set(own.rows.tolist()) & set(whole)
    raw = raw_features(parts, features)
    assert [of.numbers.tolist() for of in raw] == [of.numbers.tolist() for of in features]
    assert all(torch.equal(of.frequencies, own.frequencies) for of, own in zip(raw, features, strict=True))
    assert main(["evaluate", str(folder)]) == 0
    assert "cannot be read" not in capfd.readouterr().err


@pytest.mark.process
def test_two_processes_count_it_once(root, tmp_path):
    """Each decodes its own share; nothing is evaluated, so that only training finds what is broken."""
    words = [*WORDS, "--evaluations", "[]", "--report", "false", "--batches.batch_size", "4"]
    processes = start_together(words, tmp_path, 2, said=True)
    for process in processes:
        process.join(400)
        assert process.exitcode == 0
    said = [(tmp_path / f"{rank}.err").read_text() for rank in range(2)]
    assert [text.count("cannot be read") for text in said] == [1, 0]
    (folder,) = (tmp_path / "runs").iterdir()
    files = json.loads((folder / "run.json").read_text())["undecodable"].values()
    held = Stratified()(Samples(samples_of(root).inputs, samples_of(root).labels, CLASSES))
    mine = [held.train.inputs, held.train.inputs.all_rows.items]
    trained = {str(mine[1][row]).split("photos/")[1] for row in mine[0].rows.tolist()}
    assert {name.split("photos/")[1] for name in files} == BROKEN & trained
