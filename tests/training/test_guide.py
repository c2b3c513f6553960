"""A guide from an earlier run: what it gives a loss, in a training by the command, and what is told at the door."""

from dataclasses import replace

import pytest
import torch
from trainings import save_pairs

import likewise as lw
from likewise.configuration import resolve
from likewise.data import LazyInputs, Samples, Texts
from likewise.data.lazy_inputs import Unreadable
from likewise.models import ConvNet
from likewise.training import Guide, InputContext, Step, assemble
from likewise.workflows import Silent

pytestmark = pytest.mark.slow

OPTIONS = {"loss": "InfoNCELoss", "loss.symmetric": "true", "batch_size": "24", "epochs": "1", "data.second": "counts"}
OPTIONS |= {"encoder": "BagOfTokens", "encoder.width": "8", "encoder.vocabulary": "200", "head.out_dim": "6"}
OPTIONS |= {"evaluations": [], "report": "false", "trainer.accelerator": "cpu"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Return options of a training on texts and vectors of their words' counts, and the folder of a run of it."""
    folder = tmp_path_factory.mktemp("pairs")
    options = OPTIONS | save_pairs(folder) | {"runs": str(folder / "runs")}
    return options, lw.train(options, progress=Silent()).folder


def made(options, run, **more):
    """Return a training with a guide that is ready."""
    words = {"encoder.width": "12", "encoder.vocabulary": "90", "inputs": "Guide", "inputs.run": str(run)}
    return assemble(vars(resolve(options | words | more)), 0)


def test_it_supplies_the_runs_embeddings_of_the_batch(trained):
    """Of texts as they are, not as the new encoder numbers their tokens; of inputs that occur twice as of any other."""
    options, run = trained
    training = made(options, run)
    (guide,) = (one for one in training.module.inputs.all if isinstance(one, Guide))
    rows = torch.tensor([3, 40, 4, 0])
    step = Step({"sample_index": rows}, training.module.encoder, None)
    model, samples = lw.load(run), training.trained
    of = samples.inputs.strings
    texts = [of[row] for row in rows.tolist()]
    expected = model.encode(texts), model.encode(samples.counterparts.inputs[rows], side="second")
    for found, theirs in zip((guide.guide_queries(step), guide.guide_keys(step)), expected, strict=True):
        torch.testing.assert_close(found, torch.from_numpy(theirs))
    assert not any("Guide" in name for name in training.module.state_dict())


class PartlyRead(LazyInputs):
    """Vectors, of which some cannot be read, and are 0, as black images are."""

    def __init__(self, vectors, broken):
        self.shape, self.dtype, self.vectors, self.broken = vectors.shape, vectors.dtype, vectors, broken

    def __getitem__(self, rows):
        return torch.where(self.broken[rows, None], 0.0, self.vectors[rows])

    def unreadable(self, rows):
        return [
            Unreadable(place, int(rows[place]), "x.png") for place in self.broken[rows].nonzero().flatten().tolist()
        ]


def test_an_image_that_cannot_be_decoded_is_left_to_the_training(trained):
    """It may have any embedding, as training draws another in its place; those of others are the same."""
    options, run = trained
    training = made(options, run)
    samples = training.trained
    others = samples.counterparts
    partly = PartlyRead(others.inputs, others.items == others.items[3])
    (guide,) = (one for one in training.module.inputs.all if isinstance(one, Guide))
    other = Guide(str(run))
    samples = replace(samples, counterparts=replace(others, inputs=partly))
    other.build(InputContext(training.module.encoder, None, samples=samples))
    could = samples.could_be_read
    assert not could.all()
    step = Step({"sample_index": could.nonzero().flatten()}, training.module.encoder, None)
    torch.testing.assert_close(other.guide_keys(step), guide.guide_keys(step), rtol=0, atol=0)


def test_no_earlier_run_has_learned_from_the_test(trained):
    """Neither a guide, nor the run that either tower begins with, may have been trained on this run's test part."""
    options, run = trained
    begun = {"inputs": "SecondTower", "inputs.encoder": "FromRun", "inputs.encoder.run": str(run)}
    begun["inputs.encoder.side"] = "second"
    for chosen in (begun, {"inputs": "Guide", "inputs.run": str(run)}):
        assemble(vars(resolve(options | chosen)), 0)
        with pytest.raises(ValueError, match=r"expected test samples that .* was not trained on, got \d+ of 30"):
            assemble(vars(resolve(options | chosen | {"split.seed": "1"})), 0)


def test_a_training_is_guided(trained):
    """What a guide leaves out changes the loss; a margin of -2 leaves nothing out."""
    options, run = trained
    losses = []
    for margin in ("-2", "0.2", None):
        guided = {} if margin is None else {"inputs": "Guide", "inputs.run": str(run), "loss.guide_margin": margin}
        found = lw.train(options | guided, progress=Silent())
        losses.append([value for _, value in found.metrics["loss"]])
    assert losses[0] == pytest.approx(losses[2])
    assert losses[1] != pytest.approx(losses[0])


def test_what_does_not_fit_is_told(trained, tmp_path):
    options, run = trained
    with pytest.raises(ValueError, match=r"expected the folder of a run, got .*nothing"):
        made(options, tmp_path / "nothing")
    with pytest.raises(ValueError, match=r"expected SecondTower among the inputs for pairs, got none: leave out --inp"):
        assemble(vars(resolve(options | {"inputs": []})), 0)
    guide, texts = Guide(str(run)), Samples(Texts(["a red cat", "a dog"]))
    with pytest.raises(ValueError, match="expected pairs for Guide, got samples without a counterpart: read them by"):
        guide.build(InputContext(ConvNet((1, 8, 8)), None, samples=texts))
    pairs = Samples(Texts(["a red cat", "a dog"]), counterparts=Samples(torch.rand(2, 5)))
    with pytest.raises(ValueError, match=r"expected .*, got ") as told:
        guide.build(InputContext(ConvNet((1, 8, 8)), None, samples=pairs))
    assert "\n" not in str(told.value)
    with pytest.raises(ValueError, match=r"expected inputs that SupConLoss takes, got Guide, .* or choose InfoNCELoss"):
        made({name: of for name, of in options.items() if not name.startswith("loss")}, run, loss="SupConLoss")
