"""One process: print by how many bytes the peak resident size grows over one step of each loss.

python memory_worker.py ROWS ROWS …
"""

import json
import sys
from pathlib import Path

import torch

import likewise as lw
from likewise import pairs

FEATURES, LABELS = 64, 20


def steps():
    """Return each case's step on some embeddings."""
    return {
        "sup_con out": lambda z: lw.SupConLoss(temperature=0.1)(z, torch.arange(len(z)) % 50),
        "sup_con in": lambda z: lw.SupConLoss(temperature=0.1, form="in")(z, torch.arange(len(z)) % 50),
        "sup_con at a low temperature": lambda z: lw.SupConLoss(temperature=0.01)(z, torch.arange(len(z)) % 50),
        "sup_con pairs": lambda z: lw.SupConLoss(temperature=0.1, form="pairs")(z, torch.arange(len(z)) % 50),
        "label sets": lambda z: lw.SupConLoss(temperature=0.1)(z, torch.rand(len(z), LABELS) < 0.1),
        "references": lambda z: lw.SupConLoss(temperature=0.1)(
            z[: len(z) // 2],
            torch.arange(len(z) // 2) % 50,
            references=z[len(z) // 2 :],
            reference_labels=torch.arange(len(z) // 2) % 50,
        ),
        "info_nce": lambda z: lw.InfoNCELoss(symmetric=True)(*z.chunk(2)),
        "info_nce of pairs": lambda z: lw.InfoNCELoss(symmetric=True)(*z.chunk(2), ids=torch.arange(len(z) // 2) // 3),
        "sig_lip of pairs": lambda z: lw.SigLIPLoss()(*z.chunk(2), ids=torch.arange(len(z) // 2) // 3),
        "info_nce with a queue": lambda z: lw.InfoNCELoss()(z[:500], z[500:1000], queue=z[1000:].detach()),
        "dcl": lambda z: lw.DCLLoss()(z.view(-1, 2, FEATURES)),
        "mul_sup_con": lambda z: lw.MulSupConLoss()(z, label_sets(len(z))),
        "msc": lambda z: lw.MSCLoss()(z, label_sets(len(z)), torch.randn(LABELS, FEATURES)),
        "nws mean": lambda z: nws(z, "mean"),
        "nws max": lambda z: nws(z, "max"),
        "bcl": lambda z: lw.BCLLoss()(z, torch.arange(len(z)) % 50, torch.randn(50, FEATURES)),
        "kcl": lambda z: lw.KCLLoss()(z.view(-1, 2, FEATURES), torch.arange(len(z) // 2) % 50),
        "paco": lambda z: lw.PaCoLoss()(z, torch.arange(len(z)) % 50, torch.randn(len(z), 50)),
        "learned weights": learned,
        "hard negatives": lambda z: lw.HardNegativeLoss()(z.view(-1, 2, FEATURES)),
        "multi-similarity": lambda z: lw.MultiSimilarityLoss()(z, torch.arange(len(z)) % 50),
        "multi-similarity, mined": lambda z: lw.MultiSimilarityLoss(epsilon=0.1)(z, torch.arange(len(z)) % 50),
        "lifted structure": lambda z: lw.LiftedStructureLoss()(z, torch.arange(len(z)) % 50),
        "lifted structure of large classes": lambda z: lw.LiftedStructureLoss()(z, torch.arange(len(z)) % 2),
        # with as many classes as rows
        "arc face": lambda z: lw.ArcFaceLoss()(z, torch.arange(len(z)), torch.randn(len(z), FEATURES)),
        "proxy anchor": lambda z: lw.ProxyAnchorLoss()(z, torch.arange(len(z)), torch.randn(len(z), FEATURES)),
        "rascal": lambda z: lw.RASCALLoss(len(z), FEATURES)(z, torch.arange(len(z)) % 4, torch.arange(len(z))),
    }


def learned(z):
    """Pull and push by products of learned vectors."""
    w = pairs.LowRank(*(torch.rand(len(z), 8, requires_grad=True) for _ in range(2)))
    push = w * pairs.NotSelf(len(z))
    return lw.contrast(z / 8, pull=w.mean_over_row(), push=push, temperature=0.5, reduction="mean")


def label_sets(count):
    return torch.rand(count, LABELS) < 0.1


def nws(z, aggregation):
    """Contrast half of the rows with their own keys, and with the other half as a queue."""
    queries, queue = z.chunk(2)
    own, prototypes = label_sets(len(queries)), torch.randn(LABELS, FEATURES)
    loss = lw.NWSLoss(torch.full((LABELS, LABELS), 0.3), aggregation=aggregation)
    earlier = {"queue": queue.detach(), "queue_labels": label_sets(len(queue))}
    return loss(queries, own, prototypes, keys=queries.detach(), key_labels=own, **earlier)


def growth(step, rows):
    """Warm up on a small batch, start the peak again, and take one step on a batch of that many rows."""
    step(torch.randn(1100, FEATURES, requires_grad=True)).backward()
    embeddings = torch.randn(rows, FEATURES, requires_grad=True)
    embeddings.grad = torch.zeros_like(embeddings)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    step(embeddings).backward()
    return resident("VmHWM") - before


def resident(field):
    """Return a resident size in bytes from the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name, step in steps().items():
        print(json.dumps([name, [growth(step, int(rows)) for rows in sys.argv[1:]]]), flush=True)
