"""A tiny CLIP in open_clip's own training learns the captions of striped pictures, with our loss in place of its own.

pip install . 'open_clip_torch[training]'
python open_clip_training.py
"""

import json
from argparse import Namespace
from itertools import product
from pathlib import Path

import open_clip
import open_clip_train.main
from PIL import Image
from torch import nn

from likewise.integrations import ForOpenClip

COLORS = ("black", "white", "red", "lime", "blue", "yellow", "cyan", "magenta")
CLIP = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 24, "patch_size": 8, "width": 64, "layers": 1, "head_width": 32},
    "text_cfg": {"context_length": 8, "vocab_size": 49408, "width": 64, "layers": 1, "heads": 2},
}


def write(folder: Path) -> Path:
    """Write a picture of each three colours, side by side, and the table of their captions; return its path."""
    rows, table = ["filepath\ttitle"], folder / "captions.tsv"
    for number, colors in enumerate(product(COLORS, repeat=3)):
        picture = Image.new("RGB", (24, 24))
        for stripe, color in enumerate(colors):
            picture.paste(color, (8 * stripe, 0, 8 * stripe + 8, 24))
        picture.save(file := folder / f"{number}.png")
        rows.append(f"{file}\t{' '.join(colors)}")
    table.write_text("\n".join(rows), encoding="utf-8")
    return table


def main() -> None:
    """Train for eight epochs, and print the loss of the first and the last batch."""
    folder, losses = Path("open_clip_run"), list[float]()
    folder.mkdir(exist_ok=True)
    (folder / "tiny.json").write_text(json.dumps(CLIP), encoding="utf-8")
    open_clip.add_model_config(folder / "tiny.json")

    def create(args: Namespace) -> nn.Module:
        loss_of = ForOpenClip.create(args)
        loss_of.register_forward_hook(lambda _loss, _features, made: losses.append(made["contrastive_loss"].item()))
        return loss_of

    open_clip_train.main.create_loss = create  # ForOpenClip.create, if the loss need not be noted
    options = f"--model tiny --train-data {write(folder)} --batch-size 64 --epochs 8 --lr 3e-3 --warmup 10 --workers 0"
    open_clip_train.main.main([*options.split(), "--logs", str(folder), "--precision", "fp32"])
    print(f"loss before: {losses[0]:.4f}, after: {losses[-1]:.4f}")


if __name__ == "__main__":
    main()
