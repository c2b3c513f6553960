"""A script that writes the table of predictions in docs/performance.md: memory, bytes and time of a step's loss.

    uv run python docs/scripts/scaling_predictions.py

SupCon or another loss with symmetric weights, embeddings sent in bfloat16. Speeds are stated here, not measured.
"""

import sys

FEATURES, SENT = 128, 2
"""D, and the bytes of a number that is sent."""
OPERATIONS = 150e12
"""A second: 30 % of what an H100 can do with TF32."""
WITHIN, BEYOND = 0.7 * 450e9, 0.7 * 50e9
"""Bytes a second of the links within a machine of 8 GPUs, and of those of each GPU to other machines."""
KNOWN = 8
"""Bytes of a row that the others' backward needs: two numbers in float32."""


def predicted(rows: int, processes: int) -> tuple[str, ...]:
    """Return the cells of a row of the table."""
    copies, products = (3, 2) if processes == 1 else (2, 3)
    memory = copies * 4 * FEATURES * rows
    seconds = products * 2 * FEATURES * rows**2 / processes / OPERATIONS
    cells = (
        f"2{str(rows.bit_length() - 1).translate(RAISED)}",
        f"{processes:,}",
        f"{rows // processes:,}",
        _bytes(memory),
    )
    if processes == 1:
        return *cells, "–", _time(seconds), "–"
    sent = (SENT * FEATURES + KNOWN) * rows * (processes - 1) / processes
    return *cells, _bytes(sent), _time(seconds), _time(sent / (WITHIN if processes <= 8 else BEYOND))


def _bytes(number: float) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"


def _time(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds >= 0.1 else f"{1000 * seconds:.2g} ms"


RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

if __name__ == "__main__":
    lines = ["| rows | processes | rows each | memory | sent by each | products | sending |", "|---" * 7 + "|"]
    for power in range(14, 23, 2):
        lines += [f"| {' | '.join(predicted(2**power, processes))} |" for processes in (1, 8, 64, 1024)]
    sys.stdout.write("\n".join(lines) + "\n")
