"""One of two processes: calls losses that the two have built or fed differently, and saves what each was told.

python disagreement_worker.py RANK FOLDER
"""

import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import likewise as lw
from likewise import distributed
from likewise.integrations import ForMetricLearning
from likewise.memory import Prototypes

Z = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
VIEWS = Z.view(2, 2, 6)
Y = Z.clone().requires_grad_()
CLASSES, SETS = torch.tensor([0, 1, 0, 1]), torch.eye(4, 3).bool()


def made(loss, *arguments, **options):
    return loss(*arguments, gather_distributed=True, **options)


def drifted(module, here):
    """Return a module whose parameters start alike, and on one rank have moved."""
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.fill_(0.5 + here)
    return module


def rascal(training):
    return made(lw.RASCALLoss, 8, 6).train(training)


def nws(**keys):
    return made(lw.NWSLoss, torch.eye(3))(Z, SETS, torch.ones(3, 6), **keys)


KEYS = {"keys": Z, "key_labels": SETS}
CASES = {
    "queue, or none": lambda here: made(lw.InfoNCELoss)(Z, Z, queue=Z if here else None),
    "a longer queue": lambda here: made(lw.InfoNCELoss)(Z, Z, queue=Z[: 3 + here]),
    "symmetric": lambda here: made(lw.InfoNCELoss, symmetric=bool(here))(Z, Z),
    "weighted": lambda here: made(lw.DCLLoss, weighted=bool(here))(VIEWS),
    "reduction": lambda here: made(lw.SupConLoss, reduction="none" if here else "mean")(Z, CLASSES),
    "normalize": lambda here: made(lw.SupConLoss, normalize=bool(here))(Z, CLASSES),
    "form": lambda here: made(lw.SupConLoss, form="in" if here else "out")(Z, CLASSES),
    "temperature": lambda here: made(lw.SupConLoss, temperature=0.2 if here else 0.1)(Z, CLASSES),
    "a learned temperature": lambda here: made(lw.SupConLoss, temperature=torch.tensor(0.1) if here else 0.1)(
        Z, CLASSES
    ),
    "learned temperatures": lambda here: made(lw.SupConLoss, temperature=torch.tensor(0.1 + 0.1 * here))(Z, CLASSES),
    "the loss itself": lambda here: made(lw.DCLLoss if here else lw.NTXentLoss, temperature=0.1)(VIEWS),
    "gathered, or local": lambda here: (
        made(lw.TripletLoss, temperature=0.1)(Z, Z, Z) if here else made(lw.InfoNCELoss, temperature=0.1)(Z, Z)
    ),
    "k": lambda here: made(lw.KCLLoss, k=1 + here)(VIEWS, CLASSES[:2]),
    "alpha": lambda here: made(lw.MSCLoss, alpha=1.0 + here)(Z, SETS, torch.ones(3, 6)),
    "beta": lambda here: made(lw.HardNegativeLoss, beta=1.0 + here)(VIEWS),
    "views": lambda here: made(lw.NTXentLoss)(torch.ones(2, 2 + here, 6)),
    "features": lambda here: made(lw.NTXentLoss)(torch.ones(2, 2, 5 + here)),
    "dtype": lambda here: made(lw.TripletLoss)(*[Z.double() if here else Z] * 3),
    "gradient": lambda here: made(lw.SupConLoss)(Z.clone().requires_grad_(bool(here)), CLASSES),
    "kind of labels": lambda here: made(lw.SupConLoss)(Z, SETS if here else CLASSES),
    "number of labels": lambda here: made(lw.SupConLoss)(Z, torch.eye(4, 3 + here)),
    "a mask": lambda here: made(lw.SupConLoss)(VIEWS, **({"mask": torch.ones(2, 4)} if here else {})),
    "keys, or none": lambda here: nws(**(KEYS if here else {})),
    "references, or none": lambda here: made(lw.MulSupConLoss)(
        Z, SETS, **({"references": Z, "reference_labels": SETS} if here else {})
    ),
    "prototypes": lambda here: made(lw.ProxyNCALoss)(Z, CLASSES, torch.ones(2 + here, 6)),
    "values of prototypes": lambda here: made(lw.ArcFaceLoss)(Z, CLASSES, torch.eye(2, 6) + 1e-6 * here),
    "values of a wrapper's prototypes": lambda here: ForMetricLearning(
        made(lw.ProxyAnchorLoss), prototypes=drifted(Prototypes(2, 6), here)
    )(Z, CLASSES),
    "values of a learned bias": lambda here: drifted(made(lw.SigLIPLoss, bias="learned"), here)(Z, Z),
    "values of a queue": lambda here: made(lw.InfoNCELoss)(Z, Z, queue=Z.roll(here, 1)),
    "classes": lambda here: made(lw.PaCoLoss)(Z, CLASSES, torch.ones(4, 2 + here)),
    "training": lambda here: rascal(bool(here))(VIEWS, CLASSES[:2], CLASSES[:2]),
    "cache": lambda here: made(lw.RASCALLoss, 8 + here, 6)(VIEWS, CLASSES[:2], CLASSES[:2]),
}
"""Each case is called with 0 on rank 0 and 1 on rank 1."""

ALIKE = {
    "a view, or none": lambda here: made(lw.SupConLoss)(Y[:, None] if here else Y, CLASSES),
    "views as two tensors": lambda here: made(lw.NTXentLoss)(
        *([Y.view(2, 2, 6)] if here else Y.view(2, 2, 6).unbind(1))
    ),
    "half precision": lambda here: made(lw.SupConLoss)(Y.half() if here else Y, CLASSES),
    "label dtypes": lambda here: made(lw.SupConLoss)(Y, SETS.float() if here else SETS),
    "more samples": lambda here: made(lw.SupConLoss)(Y[: 3 + here], CLASSES[: 3 + here]),
    "backends": lambda here: made(lw.SupConLoss, backend="tiled" if here else "dense")(Y, CLASSES),
    "more queries in an episode": lambda here: made(lw.PatchLoss)(
        torch.ones(1, 1 + here, 6, 2, 2), torch.ones(1, 2, 6, 2, 2), torch.zeros(1, 1 + here, 2, 2).long()
    ),
    "more episodes": lambda here: made(lw.PatchLoss)(
        torch.ones(1 + here, 1, 6, 2, 2), torch.ones(1 + here, 2, 6, 2, 2), torch.zeros(1 + here, 1, 2, 2).long()
    ),
}
"""What may differ between ranks."""


def forth_and_back(loss):
    """Return a loss after its backward, in which no rank may wait for another in vain."""
    if loss.requires_grad:
        loss.backward()
    return float(loss)


def exchanges(call):
    """Return how often the ranks tell each other something in a call."""
    count, exchange = 0, distributed.exchange

    def counted(*arguments):
        nonlocal count
        count += 1
        return exchange(*arguments)

    distributed.exchange = counted
    call()
    distributed.exchange = exchange
    return count


def sent(dtype):
    """Return the bytes that this rank sends in a step of SupCon, forward and backward, by collective."""
    bytes_by = dict.fromkeys(("all_gather", "all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce"), 0)
    known = {name: getattr(dist, name) for name in bytes_by}

    def counted(name, of):
        def call(*arguments):
            bytes_by[name] += of(*arguments).nbytes
            return known[name](*arguments)

        return call

    for name in ("all_gather", "all_gather_into_tensor", "reduce_scatter_tensor"):
        setattr(dist, name, counted(name, lambda _, given: given))
    dist.all_reduce = counted("all_reduce", lambda mine: mine)
    made(lw.SupConLoss)(torch.ones(2, 2, 6, dtype=dtype, requires_grad=True), CLASSES[:2]).backward()
    for name, call in known.items():
        setattr(dist, name, call)
    return bytes_by


def main(rank, folder):
    """Call every case, and save what this rank was told, and whether the ranks still understand each other."""
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=timedelta(seconds=30))
    told = {}
    for name, call in CASES.items():
        try:
            call(rank)
        except ValueError as error:
            told[name] = str(error)
    alike = {name: forth_and_back(call(rank)) for name, call in ALIKE.items()}
    counts = {
        "SupCon": exchanges(lambda: made(lw.SupConLoss)(Z, CLASSES)),
        "InfoNCE, queue": exchanges(lambda: made(lw.InfoNCELoss)(Z, Z, queue=Z)),
        "MSC": exchanges(lambda: made(lw.MSCLoss)(Z, SETS, torch.ones(3, 6))),
    }
    counts |= {str(dtype): sent(dtype) for dtype in (torch.float32, torch.bfloat16)}
    dist.destroy_process_group()
    torch.save((told, alike, counts), folder / f"{rank}.pt")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
