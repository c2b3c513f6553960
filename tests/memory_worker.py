"""One process: print by how many bytes the peak resident size grows over one step of a loss.

python memory_worker.py CASE ROWS
"""

import sys
from pathlib import Path

import torch

import likewise as lw

FEATURES, LABELS = 64, 20


def steps():
    """Return each case's step on some embeddings."""
    return {
        "nt_xent": lambda z: lw.NTXentLoss(temperature=0.1)(z.view(-1, 2, FEATURES)),
        "sup_con out": lambda z: lw.SupConLoss(temperature=0.1)(z, torch.arange(len(z)) % 50),
        "sup_con in": lambda z: lw.SupConLoss(temperature=0.1, form="in")(z, torch.arange(len(z)) % 50),
        "sup_con at a low temperature": lambda z: lw.SupConLoss(temperature=0.01)(z, torch.arange(len(z)) % 50),
        "label sets": lambda z: lw.SupConLoss(temperature=0.1)(z, torch.rand(len(z), LABELS) < 0.1),
        "references": lambda z: lw.SupConLoss(temperature=0.1)(
            z[: len(z) // 2],
            torch.arange(len(z) // 2) % 50,
            references=z[len(z) // 2 :],
            reference_labels=torch.arange(len(z) // 2) % 50,
        ),
    }


def main(case, rows):
    """Warm up on a small batch, start the peak again, and take one step on a batch of that many rows."""
    step = steps()[case]
    step(torch.randn(1100, FEATURES, requires_grad=True)).backward()
    embeddings = torch.randn(rows, FEATURES, requires_grad=True)
    embeddings.grad = torch.zeros_like(embeddings)
    Path("/proc/self/clear_refs").write_text("5")
    before = resident("VmRSS")
    step(embeddings).backward()
    print(resident("VmHWM") - before)


def resident(field):
    """Return a resident size in bytes from the kernel's account of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
