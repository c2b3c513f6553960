"""Values, rows and gradients of losses are those of the references in `tests/golden`."""

from pathlib import Path

import numpy as np
import torch
from operator_checks import passed_weights

import likewise as lw
from cases import BACKENDS, in_pairs

DOUBLE = torch.float64
MADE_WITH = {"label_similarity", "cache", "cache_valid"}
"""Arrays that a loss is made with, as it is with every number; the others are arguments of its call."""


def rascal(cache, cache_valid, **options):
    loss = lw.RASCALLoss(*cache.shape, **options)
    loss.cache.features.copy_(cache)
    loss.cache.valid.copy_(cache_valid)
    return loss


CASES = {
    "nt_xent": lw.NTXentLoss,
    "supcon_out": lw.SupConLoss,
    "supcon_out_single_view": lw.SupConLoss,
    "supcon_in": lambda **options: lw.SupConLoss(form="in", **options),
    "moco": lw.InfoNCELoss,
    "dcl": lw.DCLLoss,
    "dclw_detached_weight": lambda **options: lw.DCLLoss(weighted=True, **options),
    "n_pairs": lw.NPairsLoss,
    "patch_local": lw.PatchLoss,
    "mulsupcon": lw.MulSupConLoss,
    **dict.fromkeys(("msc_alpha0.5", "msc_alpha1"), lw.MSCLoss),
    **dict.fromkeys(("nws_max_keys_queue", "nws_mean_keys", "nws_mean_keys_queue", "nws_mean_queue"), lw.NWSLoss),
    "nws_mean_keys_queue_normalized": lw.NWSLoss,
    **{f"rascal_{cache}": rascal for cache in ("two_views", "single_view", "partial_cache", "cold_cache")},
}


@in_pairs(case=CASES, backend=BACKENDS, draw="ab", dtype=[DOUBLE, torch.float32])
def test_reference_values(case, draw, dtype, backend):
    reference = dict(np.load(Path(__file__).parents[1] / "golden" / f"{case}_{draw}.npz"))
    inputs = {name[6:]: reference.pop(name) for name in [*reference] if name.startswith("input.")}
    options = {name: value.item() for name, value in inputs.items() if not value.ndim}
    options |= {name: torch.tensor(inputs[name]) for name in MADE_WITH & inputs.keys()}
    tensors = {name: torch.tensor(value) for name, value in inputs.items() if name not in options}
    tensors = {name: value.to(dtype) if value.is_floating_point() else value for name, value in tensors.items()}
    for name in tensors.keys() & {name[5:] for name in reference if name.startswith("grad.")}:
        tensors[name].requires_grad_()
    if case == "nt_xent":
        del tensors["labels"]
    first, *others = tensors

    def evaluated(**more):
        loss = CASES[case](backend=backend, **options, **more)
        return passed_weights(loss, tensors[first], **{name: tensors[name] for name in others})

    loss, passed = evaluated()
    loss.backward()
    found = {f"grad.{name}": tensor.grad for name, tensor in tensors.items()}
    found |= {"loss": loss, "rows": evaluated(reduction="none")[0]}
    if "weights" in reference:
        weights = passed["pull"].dense(DOUBLE).numpy()
        assert np.abs(weights - reference.pop("weights")).max() <= (1e-12 if dtype == DOUBLE else 1e-7)
    slope = options.get("scale", 1 / options.get("temperature", 1))
    for name, value in reference.items():
        expected = np.nan_to_num(value)
        bound = (1e-10 if dtype == DOUBLE else 1e-5) * max(np.abs(expected).max(), slope)
        assert np.abs(found[name].detach().numpy() - expected).max() <= bound, name
