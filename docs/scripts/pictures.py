"""The pictures in docs/images, each by its name: ``uv run python docs/scripts/pictures.py cost.svg``.

Figures are drawn from committed results of ``python -m benchmarks``; pictures of pages are taken of runs that are made
for them, in an installed Chromium. `digests.json` has a digest of what each picture shows, which a test compares, so
that none is older than its data or the code that draws it.
"""

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl
from heat_maps import DRAWINGS, STYLE, TEXT, draw, weights_of
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image
from sklearn.datasets import load_digits

DOCS = Path(__file__).resolve().parent.parent
RESULTS = DOCS.parent / "benchmarks" / "results" / "losses-AMD-EPYC.json"
BESIDE = RESULTS.with_name("beside-AMD-EPYC.json")
DIGESTS = DOCS / "images" / "digests.json"
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


FIGURES: dict[str, tuple[Callable[..., Figure], Path | None]] = {
    "cost.svg": (cost, RESULTS),
    "beside.svg": (beside, BESIDE),
    "weights.png": (weights, None),
}
"""How each figure is drawn, and the results that it shows."""
SETTINGS = ("SupCon: --loss supcon", "SimCLR: --loss simclr", "cross-entropy: --loss CrossEntropyLoss --views 1")
PAGES: dict[str, Sequence[Sequence[str]]] = {
    "page.png": [["train", "--name", "digits"]],
    "comparison.png": [
        ["sweep", "--seeds", "3", "--epochs", "10", *(word for one in SETTINGS for word in ("--setting", one))]
    ],
    "failed.png": [["train", "--name", "failed", "--lr", "0.0000001", "--epochs", "8", "--keep", "last"]],
    "neighbours.png": [
        ["train", "photos/", "--encoder", "ConvNet", "--data.size", "16", "--epochs", "8", "--report", "false"],
        [
            "search",
            "RUN",
            *(f"new/{row}.png" for row in (1501, 1604, 1708)),
            "--among",
            "photos/",
            "--html",
            "near.html",
        ],
    ],
}
"""The commands that make each page, on digits, which are files in photos/ and new/ too; RUN is the first's run."""


def digest(name: str) -> str:
    """Return a digest of what a picture shows: results and drawing code, or commands and templates of the page."""
    known = hashlib.sha256()
    if name in FIGURES:
        _, results = FIGURES[name]
        for path in (Path(__file__), Path(__file__).with_name("heat_maps.py"), *filter(None, [results])):
            known.update(path.read_bytes())
    else:
        known.update(json.dumps(PAGES[name]).encode())
        for template in sorted((DOCS.parent / "src" / "likewise" / "report" / "templates").iterdir()):
            known.update(template.read_bytes())
    return known.hexdigest()[:16]


def draw_picture(name: str) -> None:
    """Draw a picture into docs/images, and note its digest."""
    path = DOCS / "images" / name
    if name in FIGURES:
        draw_figure, results = FIGURES[name]
        measured = [json.loads(results.read_text(encoding="utf-8"))["results"]] if results else []
        with mpl.rc_context({key: GREY if value == TEXT else value for key, value in STYLE.items()}):
            undated: dict[str, Any] = {"metadata": {"Date": None}} if name.endswith("svg") else {}
            draw_figure(*measured).savefig(
                path, transparent=True, bbox_inches="tight", pad_inches=0.05, dpi=200, **undated
            )
    else:
        with tempfile.TemporaryDirectory() as folder:
            photograph(make_page(PAGES[name], Path(folder)), path)
    digests = json.loads(DIGESTS.read_text(encoding="utf-8")) if DIGESTS.is_file() else {}
    written = json.dumps(dict(sorted((digests | {name: digest(name)}).items())), indent=1)
    DIGESTS.write_text(f"{written}\n", encoding="utf-8")


def make_page(commands: Sequence[Sequence[str]], folder: Path) -> Path:
    """Run the commands in a folder, and return the newest page."""
    digits: Any = load_digits()
    for row, (pixels, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        target = folder / "photos" / str(label) if row < 1500 else folder / "new"
        target.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray((255 - pixels * 255 / 16).astype("uint8"))
        image.resize((64, 64), Image.Resampling.BICUBIC).save(target / f"{row}.png")
    for words in commands:
        run = next((str(path.parent) for path in folder.rglob("run.json")), "RUN")
        line = [run if word == "RUN" else word for word in words]
        subprocess.run([sys.executable, "-m", "likewise", *line], cwd=folder, check=True)  # noqa: S603 - our own words
    return max(folder.rglob("*.html"), key=lambda path: path.stat().st_mtime)


def photograph(page: Path, picture: Path) -> None:
    """Open a page in a browser, and keep a picture of its top."""
    from playwright.sync_api import sync_playwright  # noqa: PLC0415 - only this needs a browser

    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))))
    with sync_playwright() as tools:
        browser = tools.chromium.launch(executable_path=program, args=["--no-sandbox"])
        shown = browser.new_page(viewport={"width": 1280, "height": 1480}, color_scheme="light")
        shown.goto(page.resolve().as_uri())
        for drawn in shown.locator(".map").all():
            if (box := drawn.bounding_box()) and box["y"] < 1480:  # those below are drawn when they are scrolled to
                shown.wait_for_function("one => one.dataset.drawn", arg=drawn.element_handle())
        taken = Image.open(io.BytesIO(shown.screenshot()))
        browser.close()
    taken.convert("RGB").resize((960, 1110)).quantize(256, Image.Quantize.MAXCOVERAGE).save(picture, optimize=True)


if __name__ == "__main__":
    if not sys.argv[1:] or not set(sys.argv[1:]) <= {*FIGURES, *PAGES}:
        raise SystemExit(f"expected names of pictures, of {', '.join([*FIGURES, *PAGES])}")
    for wanted in sys.argv[1:]:
        draw_picture(wanted)
