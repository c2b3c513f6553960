"""A run in a process that did other work before is the run that it is alone."""

import os
import random

import numpy as np
import pytest
import torch

from likewise.workflows import Silent, train

pytestmark = pytest.mark.slow
SMALL = {"subset": "Fraction", "subset.fraction": 0.2, "encoder.width": 8, "epochs": 2, "evaluation_samples": 100}


def state():
    """What the whole process computes by."""
    flags = torch.backends.mkldnn.enabled, torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    kinds = torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.get_deterministic_debug_mode()
    tiny = float(torch.tensor(1e-40) * 0.5), np.geterr()  # flushed to 0 where somebody asked the processor to
    return torch.get_num_threads(), torch.get_num_interop_threads(), *flags, *kinds, *tiny, dict(os.environ)


def drawn():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()  # noqa: NPY002, S311 - the global ones


def test_a_run_after_a_page_is_the_run_alone_to_the_bit(tmp_path):
    """By its weights, its curves, and what is drawn after it; and the page leaves the process as it was."""
    folders, states, numbers = [], [], []
    for report in (False, True, False):
        run = train(SMALL, report=report, runs=tmp_path / str(len(folders)), progress=Silent())
        folders.append(run.folder)
        states.append(state())
        numbers.append(drawn())
    for name in ("encoder.safetensors", "metrics.csv", "scores.csv"):
        alone, page, after = ((folder / name).read_bytes() for folder in folders)
        assert alone == page == after, name
    assert (folders[1] / "report.html").is_file()
    assert states[0] == states[1] == states[2]
    assert os.environ["MKL_CBWR"]
