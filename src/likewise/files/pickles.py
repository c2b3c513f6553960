"""Files that only pickle can load, which runs code in them: their contents, determined without loading them."""

import pickle
from pathlib import Path

import torch

TOLERATED_CLASSES = {"argparse.Namespace"}  # which timm's own checkpoints hold
REFUSAL = (
    "which nothing here loads, since that runs code: where you trust it, save its weights alone, "
    "torch.save(module.state_dict(), path)"
)


def describe_pickle(path: Path | str) -> str:
    """Say which objects a file of `torch.save` or `pickle` holds, and what to do; for any other file return ""."""
    try:
        with Path(path).open("rb") as file:
            start = file.read(2)
        if start == b"PK":
            unsafe_globals = set(torch.serialization.get_unsafe_globals_in_checkpoint(str(path))) - TOLERATED_CLASSES
            names = sorted(unsafe_globals, key=lambda name: (name.startswith("torch."), name))
            listed = ", ".join(names[:2]) + (", ..." if len(names) > 2 else "")
            return f"pickled objects ({listed}), {REFUSAL}" if names else ""
        if start in {b"\x80\x03", b"\x80\x04", b"\x80\x05"}:
            return f"pickled objects, {REFUSAL}"
        if start == b"\x80\x02":  # which torch wrote before 1.6
            torch.load(path, map_location="meta", weights_only=True)
    except pickle.UnpicklingError:
        return f"pickled objects, {REFUSAL}"
    except (OSError, ValueError, RuntimeError, EOFError) as error:
        return f"a TorchScript module, {REFUSAL}" if "torchscript" in str(error) else ""
    return ""
