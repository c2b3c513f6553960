"""Options as records: what a workflow is given is one, and its signature, keywords and record name the same options."""

import inspect
from dataclasses import MISSING, FrozenInstanceError, fields, replace

import pytest
import torch

from likewise import workflows
from likewise.configuration import read, resolve
from likewise.configuration.guesses import ALIASES
from likewise.configuration.options import RECORDS, TrainOptions
from likewise.configuration.trainer import TrainerOptions
from likewise.workflows import lightning_trainer
from likewise.workflows.arguments import EmbedArguments, EvaluateArguments, TrainArguments

OWN = {"compare": {"names"}}  # parameters of a workflow that are no options


def names_of(verb):
    return {field.name for field in fields(RECORDS[verb][0])}


@pytest.mark.parametrize("verb", ["compare", "export", "predict", "search"])
def test_a_workflow_has_the_options_of_its_record_as_parameters(verb):
    parameters = dict(inspect.signature(getattr(workflows, verb)).parameters)
    assert set(parameters) == names_of(verb) | OWN.get(verb, set()) | {"progress"}
    for field in fields(RECORDS[verb][0]):
        own = parameters[field.name].default
        assert field.default is MISSING or own is inspect.Parameter.empty or str(own) == str(field.default)


def test_keywords_are_the_options_of_the_records():
    """Beside what stands first, and the short names of train's."""
    assert set(EvaluateArguments.__annotations__) == names_of("evaluate") - {"source"}
    assert set(EmbedArguments.__annotations__) == names_of("embed") - {"run", "data"}
    short = set(TrainArguments.__annotations__) - names_of("train")
    assert set(TrainArguments.__annotations__) >= names_of("train")
    assert short <= {*ALIASES, "device"}


def test_the_trainers_options_are_lightnings_with_its_defaults():
    from lightning import Trainer  # noqa: PLC0415 - takes seconds

    theirs = inspect.signature(Trainer).parameters
    assert {field.name: field.default for field in fields(TrainerOptions)}.items() <= {
        name: parameter.default for name, parameter in theirs.items()
    }.items()


def test_defaults_are_left_to_lightning_whose_version_may_have_other_options(monkeypatch):
    class Other:
        def __init__(self, *, accelerator="auto", max_epochs=None):
            pass

    monkeypatch.setattr(lightning_trainer, "Trainer", Other)
    options = vars(TrainerOptions(accelerator="cpu", max_epochs=3))
    assert lightning_trainer.trainer_arguments(options) == {"accelerator": "cpu", "max_epochs": 3}
    with pytest.raises(ValueError, match=r"expected trainer options of Lightning .*, got --trainer.benchmark: upgrade"):
        lightning_trainer.trainer_arguments({"accelerator": "cpu", "benchmark": True})


def test_a_class_that_the_installed_version_lacks_is_told(monkeypatch):
    monkeypatch.delattr(torch.optim, "Muon")
    with pytest.raises(ValueError, match=r"expected a class that torch.optim has, got Muon: install"):
        read(["--optimizer", "Muon"])


def test_to_a_record_nothing_is_added():
    """Neither the recipe nor the data says more of it; its parts may be named as on the command line."""
    assert resolve(TrainOptions()) == resolve({}) == read([])
    for words in (
        "--recipe moco-cifar10 --batches.augmentation null --name one",
        "--subset LongTail --subset+ Fraction --subset.fraction 0.5 --evaluations [] --trainer.callbacks Timer",
    ):
        options = read(words.split())
        assert resolve(options) == options
        other = replace(options, loss={"class_path": "NTXentLoss", "init_args": {"temperature": 0.2}})
        assert resolve(other).loss == read(["--loss", "NTXentLoss", "--loss.temperature", "0.2"]).loss


def test_a_record_stays_as_it_is_and_is_checked():
    options = read(["runs/A", "runs/B"], verb="compare")
    assert (options.runs, options.sections) == (["runs/A", "runs/B"], None)
    with pytest.raises(FrozenInstanceError):
        options.runs = ()
    with pytest.raises(ValueError, match="--seed: expected a whole number, got one"):
        resolve(TrainOptions(seed="one"))
    with pytest.raises(ValueError, match=r"unknown option --loss\.temprature of SupConLoss"):
        resolve(TrainOptions(loss={"class_path": "SupConLoss", "init_args": {"temprature": 1}}))
