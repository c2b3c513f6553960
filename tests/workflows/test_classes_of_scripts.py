"""Classes of a script or notebook: a run names the file's module, or says what will be missing, or takes an object."""

import sys
from types import ModuleType

import numpy as np
import pytest
import torch
from in_use import Listener

import likewise as lw
from likewise.runs import load_encoder
from likewise.workflows import Silent, plan

pytestmark = pytest.mark.slow  # trains
SCRIPT = """
import torch
import likewise as lw

class Net(torch.nn.Module):
    def __init__(self, width: int = 6):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, width))
    def forward(self, images):
        return self.layers(images)

class Own(lw.models.Encoder):
    def __init__(self, input_shape: tuple[int, ...]):
        super().__init__(input_shape)
        self.net = Net()
    @property
    def feature_dim(self):
        return 6
    def forward(self, inputs):
        return self.net(self.standardized(inputs))
"""
GUARDED = f'{SCRIPT}\nif __name__ == "__main__":\n    raise SystemExit("run again")\n'
QUICK = {"subset": "Fraction", "subset.fraction": 0.1, "epochs": 1, "report": False, "evaluations": "KNN", "workers": 0}


@pytest.fixture
def script(tmp_path, monkeypatch):
    """Return a function that makes a file what this process runs, and one that ends this."""
    monkeypatch.syspath_prepend(tmp_path)
    before = sys.modules["__main__"]

    def runs(source, file="my_training.py"):
        main = ModuleType("__main__")
        if file is not None:
            (tmp_path / file).write_text(source)
            main.__file__ = str(tmp_path / file)
        monkeypatch.setitem(sys.modules, "__main__", main)
        exec(compile(source.partition("\nif __name__")[0], "script", "exec"), vars(main))  # noqa: S102 - as Python does
        return main

    def ends():
        monkeypatch.setitem(sys.modules, "__main__", before)
        sys.modules.pop("my_training", None)

    yield runs, ends
    sys.modules.pop("my_training", None)


def trained(tmp_path, **options):
    listener = Listener()
    run = lw.train({**QUICK, "runs": tmp_path / "runs", **options}, progress=listener)
    return run, [line for line in listener.said if "no other process" in line]


@pytest.mark.parametrize(("whole", "file"), [(False, None), (True, "my-training.py")])
def test_what_others_will_not_find_is_said_at_the_start_and_taken_as_an_object(whole, file, script, tmp_path):
    runs, ends = script
    main = runs(GUARDED if file == "my-training.py" else SCRIPT, file)
    chosen = {"encoder": main.Own} if whole else {"encoder": "Wrapped", "encoder.module": main.Net}
    run, said = trained(tmp_path, **chosen)
    name = "Own" if whole else "Net"
    assert len(said) == 1
    assert said[0].startswith(f"warning: no other process finds {name}, of this script or notebook: put ")
    images = torch.rand(3, 1, 8, 8)
    expected = lw.load(run).encode(images)
    ends()
    with pytest.raises(ValueError, match=rf"got __main__\.{name}, which is of another script or notebook: put it in"):
        lw.load(run)
    made = main.Own((1, 8, 8)) if whole else main.Net()
    np.testing.assert_allclose(lw.load(run, module=made).encode(images), expected, rtol=0, atol=1e-6)
    again = load_encoder(run.folder, main.Own((1, 8, 8)) if whole else main.Net())
    np.testing.assert_allclose(again.encode(images), expected, rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match=rf"expected a module of this run's encoder, .*{name}.*, got Linear: give the"):
        lw.load(run, module=torch.nn.Linear(1, 1))
    if not whole:
        with pytest.raises(ValueError, match=r"expected the weights of this run's encoder"):
            lw.load(run, module=main.Net(width=5))


KINDS = {
    "data": "lw.data.Digits",
    "split": "lw.data.Stratified",
    "head": "lw.models.NoHead",
    "loss": "lw.SupConLoss",
    "batches": "lw.data.Views",
    "batches.augmentation": "lw.data.RandomAffine",
    "batches.sampler": "lw.data.Shuffled",
    "optimizer": "torch.optim.SGD",
    "schedule": "lw.training.Constant",
    "evaluations": "lw.evaluation.KNN",
    "sections": "lw.report.sections.ScoresSection",
}


@pytest.mark.parametrize(("guarded", "whole"), [(True, False), (False, True)])
def test_parts_of_every_kind_are_found_by_their_file_or_named(guarded, whole, script, tmp_path):
    runs, ends = script
    own = {option: f"My{kind.rpartition('.')[2]}" for option, kind in KINDS.items()}
    source = SCRIPT + "".join(f"\nclass {own[option]}({kind}):\n    pass\n" for option, kind in KINDS.items())
    main = runs(source + GUARDED[len(SCRIPT) :] if guarded else source)
    options = {**{option: getattr(main, name) for option, name in own.items()}, "optimizer.lr": 0.1}
    options |= {"encoder": main.Own} if whole else {"encoder": "Wrapped", "encoder.module": main.Net}
    run, said = trained(tmp_path, **options)
    module, names = "my_training" if guarded else "__main__", [*own.values(), "Own" if whole else "Net"]
    assert all(f"class_path: {module}.{name}\n" in run.configuration.read_text() for name in names)
    assert len(said) == (not guarded)
    assert all(name in line for line in said for name in names)
    if guarded:
        assert sys.modules["my_training"] is main  # which isn't run a second time
        images = torch.rand(3, 1, 8, 8)
        expected = run.encoder().encode(images)
        ends()
        np.testing.assert_allclose(lw.load(run).encode(images), expected, rtol=0, atol=1e-6)
        assert lw.evaluate(run.folder, progress=Silent()).scores == run.scores
    else:
        ends()
        with pytest.raises(ValueError, match=r"of another script or notebook"):
            lw.train({"config": str(run.configuration)}, progress=Silent())


def test_a_sweep_takes_classes(script):
    runs, _ = script
    main = runs(GUARDED)
    words = plan.options_of({"encoder": "Wrapped", "encoder.module": main.Net, "encoder.standardize": True})
    assert words == ["--encoder", "Wrapped", "--encoder.module", "my_training.Net", "--encoder.standardize", "true"]
