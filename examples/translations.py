"""Two languages in one space: `lw.train` on two files of lines, recall in both directions, nearest translations.

    pip install '.[train,text]'
    python translations.py train.en.gz train.de.gz

Line n of one is the translation of line n of the other (github.com/multi30k/dataset). Without files, 2,000 are made up.
"""

import gzip
import itertools
import random
import sys
import tempfile
from pathlib import Path

import likewise as lw

WORDS = (
    ("the small", "der kleine", "the big", "der große", "the old", "der alte", "the young", "der junge"),
    ("dog", "Hund", "man", "Mann", "boy", "Junge", "bear", "Bär", "baker", "Bäcker", "bird", "Vogel"),
    ("sees", "sieht", "draws", "zeichnet", "likes", "mag", "finds", "findet", "sells", "verkauft", "buys", "kauft"),
    ("a red", "ein rotes", "a blue", "ein blaues", "a green", "ein grünes", "a yellow", "ein gelbes"),
    ("boat", "Boot", "house", "Haus", "book", "Buch", "bread", "Brot", "picture", "Bild", "glass", "Glas"),
)
QUERIES = ["the old man finds a yellow boat", "the young boy likes a red book"]


def made(folder: Path) -> list[str]:
    """Write sentences and their translations, and return the two files."""
    words = (zip(of[::2], of[1::2], strict=True) for of in WORDS)
    sentences = random.Random(0).sample(list(itertools.product(*words)), 2000)
    files = [folder / "lines.en", folder / "lines.de"]
    for language, file in enumerate(files):
        file.write_text("".join(" ".join(pair[language] for pair in of) + "\n" for of in sentences), encoding="utf-8")
    return list(map(str, files))


def main() -> None:
    """Train both encoders, and say how often they find the translation of a sentence they have not seen."""
    with tempfile.TemporaryDirectory() as folder:
        first, second = sys.argv[1:] or made(Path(folder))
        options = {"data.first": first, "data.second": second, "runs": folder, "report": False}
        options |= {} if sys.argv[1:] else {"batch_size": 128, "epochs": 12}
        run = lw.train(options, recipe="pairs-multi30k", progress=lw.workflows.Silent())
        if run is None:  # as for all but the first of several processes
            return
        for score in run.scores:
            if score.metric.name.startswith("recall@1, ") and (score.epoch, score.part) == (None, "test"):
                print(f"{score.metric.name.replace(',', '')} of {score.features}: {score.value:.3f}")
        model = lw.load(run)
        with (gzip.open if second.endswith(".gz") else open)(second, "rt", encoding="utf-8") as file:
            lines = sorted({line.strip() for line in file})
        found = model.search(QUERIES, model.encode(lines, side="second"), k=3)
        for query, places in zip(QUERIES, found.ids, strict=True):
            print(query, *(lines[int(place)] for place in places), sep="\n    ")


if __name__ == "__main__":
    main()
