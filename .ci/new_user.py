"""Make some photos and texts, and train on them as somebody does who has installed the extras and no more: offline."""

import csv
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

with tempfile.TemporaryDirectory() as folder:
    data = Path(folder)
    with (data / "texts.csv").open("w", newline="", encoding="utf-8") as opened:
        written = csv.writer(opened)
        written.writerow(("text", "label"))
        for number in range(24):
            topic = ("ash", "elm")[number % 2]
            (data / "photos" / topic).mkdir(parents=True, exist_ok=True)
            shade = (10 * number, 200 * (number % 2), 90)
            Image.new("RGB", (64, 48), shade).save(data / "photos" / topic / f"{number}.jpg")
            written.writerow((f"a leaf of {topic}, number {number}", topic))
    for name in ("photos", "texts.csv"):
        words = ["train", name, "--steps", "1", "--runs", f"runs-{name}", "--report", "false"]
        offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(data / "cache")}
        done = subprocess.run(
            [str(Path(sys.executable).with_name("likewise")), *words],
            cwd=data,
            env=offline,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode or " from the package " not in done.stderr:
            what = f"ended with {done.returncode}" if done.returncode else "said no package that its weights came from"
            sys.exit(f"{done.stdout}\n{done.stderr}\nlikewise {' '.join(words)} {what}")
