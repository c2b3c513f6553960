"""The figures of the README, drawn into docs/images: ``uv run python docs/scripts/readme_figures.py [RUN]``.

`cost.svg` shows time and memory against rows from committed results of ``python -m benchmarks losses``.
`beside.svg` shows how many times ours other libraries take, from results of `python -m benchmarks beside`.
`weights.png` shows pull and push of three losses, drawn by `heat_maps`. With the folder of a run, `page.png` is the
top of its page, opened in an installed Chromium.
"""

import io
import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from heat_maps import DRAWINGS, STYLE, TEXT, draw, weights_of
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

DOCS = Path(__file__).resolve().parent.parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "losses-AMD-EPYC.json"
BESIDE = RESULTS.with_name("beside-AMD-EPYC.json")
GREY = "#808080"  # readable on white and on black
LOSS = "SupConLoss"
CONTENDERS = {
    ("likewise", "tiled"): ("likewise", "#2f7fd6", 2.2),
    ("dense form", ""): ("dense formula", "#e07b16", 1.3),
    ("torch.compile", ""): ("dense formula, torch.compile", "#c2338b", 1.3),
    ("pytorch-metric-learning", ""): ("pytorch-metric-learning", "#3a9a5c", 1.3),
}
"""Who is compared: how they are called, coloured and how wide their line is."""
SHOWN = {"NTXentLoss": "SimCLR", "SupConLoss": "SupCon", "NWSLoss": "NWS"}
UNITS = {"milliseconds": 1e-3, "peak_bytes": 2**-20}
TITLES = {"milliseconds": "seconds a step", "peak_bytes": "MiB a step"}


def cost(results: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw time and memory of SupCon, forward and backward, against rows."""
    figure = Figure(figsize=(8, 2.9))
    for axes, quantity in zip(figure.subplots(1, 2), UNITS, strict=True):
        _lines(axes, results, quantity)
    lines = figure.axes[0].get_legend_handles_labels()
    figure.legend(*lines, frameon=False, loc="lower center", bbox_to_anchor=(0.5, 0.96), ncols=len(CONTENDERS))
    figure.subplots_adjust(wspace=0.25)
    return figure


def beside(results: Sequence[Mapping[str, Any]]) -> Figure:
    """Draw how many times ours the time and the memory of other libraries are, loss by loss."""
    theirs = sorted((one for one in results if one["figures"]), key=lambda one: one["figures"]["time"])
    figure = Figure(figsize=(8, 0.24 * len(theirs) + 0.4))
    shown = figure.subplots(1, 2, sharey=True)
    for axes, (quantity, title) in zip(
        shown, (("time", "times our time"), ("memory", "times our memory")), strict=True
    ):
        ratios = [one["figures"][quantity] for one in theirs]
        axes.barh(
            range(len(theirs)),
            [ratio - 1 for ratio in ratios],
            left=1,
            height=0.55,
            color=CONTENDERS["dense form", ""][1],
        )
        for place, ratio in enumerate(ratios):
            axes.text(1.1 * ratio, place, f"{ratio:.{ratio < 10:d}f}", va="center", fontsize="small")
        axes.set(xscale="log", xlim=(1, 4000), title=title)
        axes.set_yticks(range(len(theirs)), [f"{one['loss']} · {one['contender']}" for one in theirs])
        axes.spines[:].set_visible(False)
        axes.tick_params(length=0)
    return figure


def _lines(axes: Axes, results: Sequence[Mapping[str, Any]], quantity: str) -> None:
    for (contender, backend), (name, colour, width) in CONTENDERS.items():
        points = sorted(
            (one["rows"], one[quantity] * UNITS[quantity])
            for one in results
            if (one["loss"], one["contender"], one["backend"]) == (LOSS, contender, backend) and one[quantity]
        )
        axes.plot(*zip(*points, strict=True), color=colour, label=name, linewidth=width, marker="o", markersize=3.5)
    axes.set(xscale="log", yscale="log", xlabel="rows of the batch, 128 features", title=TITLES[quantity])
    axes.set_xticks(ticks := sorted({one["rows"] for one in results if one[quantity]}), [f"{rows:,}" for rows in ticks])
    axes.minorticks_off()
    axes.grid(alpha=0.2)
    axes.spines[:].set_visible(False)


def weights() -> Figure:
    """Draw pull and push of three losses side by side."""
    found = {loss: weights_of(DRAWINGS[loss]) for loss in SHOWN}
    wide = [maps.shape[1] for of in found.values() for maps in of.values()]
    figure = Figure(figsize=(0.135 * sum(wide) + 2.6, 2.2))
    columns = iter(figure.subplots(1, len(wide), width_ratios=wide))
    for loss, name in SHOWN.items():
        for kind, matrix in found[loss].items():
            axes: Axes = next(columns)
            draw(axes, kind, matrix, DRAWINGS[loss])
            axes.set_title(f"{name}: {kind}", fontsize=8, fontweight="bold")
            axes.set(xlabel="", ylabel="", aspect="equal")
            axes.tick_params(axis="x", labelsize=5)
    return figure


def page(run: Path, picture: Path) -> None:
    """Open the page of a run in a browser, and keep a picture of its top."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only this needs a browser

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=program, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1280, "height": 1480}, color_scheme="light")
        shown.goto((run / "report.html").resolve().as_uri())
        for drawn in shown.locator(".map").all():
            shown.wait_for_function("one => one.dataset.drawn", arg=drawn.element_handle())
        taken = Image.open(io.BytesIO(shown.screenshot()))
        browser.close()
    taken.convert("RGB").resize((960, 1110)).quantize(256, Image.Quantize.MAXCOVERAGE).save(picture, optimize=True)


if __name__ == "__main__":
    folder = DOCS / "images"
    folder.mkdir(exist_ok=True)
    measured = json.loads(RESULTS.read_text(encoding="utf-8"))["results"]
    with mpl.rc_context({name: GREY if value == TEXT else value for name, value in STYLE.items()}):
        pairs = json.loads(BESIDE.read_text(encoding="utf-8"))["results"]
        drawn = {"cost.svg": cost(measured), "beside.svg": beside(pairs), "weights.png": weights()}
        for file, figure in drawn.items():
            undated: dict[str, Any] = {"metadata": {"Date": None}} if file.endswith("svg") else {}
            figure.savefig(folder / file, transparent=True, bbox_inches="tight", pad_inches=0.05, dpi=200, **undated)
    for run in sys.argv[1:2]:
        page(Path(run), folder / "page.png")
