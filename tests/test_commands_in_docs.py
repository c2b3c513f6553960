"""The commands of the pages: each verb understands the options that they give it; nothing is trained.

What they read lies in a folder, made for each word by its ending.
"""

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from likewise.cli import _underscored
from likewise.cli.verbs import parse_sweep
from likewise.configuration import read, written
from likewise.configuration.command_line import requested_help
from likewise.configuration.options import RECORDS
from likewise.workflows import plan

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name / "README.md" for name in (".", "benchmarks", "examples")),
]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in PAGES}
VERB = rf"(?:{'|'.join([*RECORDS, 'sweep'])})\b"
FILES = {
    "items.jsonl": '{"item": 3}\n',
    ".jsonl": '{"text": "a story", "label": "x"}\n',
    ".csv": "file,label,x\n1.png,a,1\n",
}
LACKING = "is not found|does not exist|with no readable|, got none: see|expected one argument"
"""What the reader has, not the test: a class of the page's own code, a file; and what a fragment leaves out."""


def commands(text):
    """Return the commands of a page, in its blocks and in its lines, as words."""
    for line in text.replace("\\\n", " ").splitlines():
        block = re.match(rf" {{4,}}likewise ({VERB}.*)", line)
        for said in [block[1]] if block else re.findall(rf"`likewise ({VERB}[^`]*)`", line):
            yield [_underscored(word) for word in shlex.split(said, comments=True) if word not in {"...", "…"}]


def given(word):
    """Make the file or the folder of a class that a word names."""
    path = Path(word)
    content = FILES.get(path.name, FILES.get(path.suffix))
    if word.endswith("/"):
        (path / "cats").mkdir(parents=True, exist_ok=True)
        (path / "cats" / "1.png").touch()
    elif content is not None or path.suffix == ".npz":
        path.write_text(content or "")


def mistake(verb, words):
    """Say what a verb does not understand; None: it understands all."""
    try:
        if verb == "sweep":
            planned = parse_sweep(words)[0]
            planned.trials.update({name: trials[:1] for name, trials in planned.trials.items()})
            plan.configurations(planned)
        elif requested_help(words, verb) is None:
            read([word for word in words if word != "--print_config"], verb=verb)
    except ValueError as error:
        return None if re.search(LACKING, str(error)) else f"likewise {verb} {shlex.join(words)}: {error}"
    return None


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page, text in TEXTS.items() if any(commands(text))])
def test_every_command_of_a_page_is_understood(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs/RUN").mkdir(parents=True)
    Path("runs/RUN/config.yaml").write_text(written(read([])))
    Path("runs/RUN/run.json").write_text("{}")
    wrong = []
    for verb, *words in commands(TEXTS[page]):
        for word in words:
            if re.fullmatch(r"[\w-]+(/|\.[a-z]+)", word):
                given(word)
        wrong.append(mistake(verb, words) if words else None)
    assert not list(filter(None, wrong))


EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
NEEDS = {
    "onnx": r"--format onnx|\.onnx\b",
    "text": r"--encoder(\.encoder)? PretrainedTransformer|\b(texts|stories|pairs|captions|questions)\.(csv|jsonl)|"
    r"\.txt\b|-texts\b",
    "images": r"\b(photos|images|birds|mini|new|shards)/|\.(jpg|png|tar)\b|--data (Folder|Torchvision|Shards|STL10)|"
    r"--encoder (Timm|resnet\d+)|cifar(10|100)?\b|cifar-fs|stl10|omniglot\b|image-folder|mini-imagenet",
    "hub": r"\.(csv|tsv|jsonl|parquet)\b|--data (Hub|Table|Pairs|Text)\b",
}
"""What the words of a command tell of the extras that it needs; the first that fits."""


def brought(extra):
    """Return an extra with those that it brings."""
    inner = {name for each in EXTRAS[extra] for name in re.findall(r"^likewise\[([\w,]+)\]", each)}
    return {extra}.union(*(brought(name) for names in inner for name in names.split(",")))


def named_extras(text):
    """Return the extras that a page tells the reader to install, with those that they bring."""
    several = re.findall(r"(?:\.|likewise)\[([\w,]+)\]", text)
    return {extra for names in several for name in names.split(",") for extra in brought(name)}


def test_a_page_names_the_extras_that_its_commands_need():
    """Where the reader is: in the line that installs them, or a mention such as `likewise[images]`."""
    lacking = {}
    for page, text in TEXTS.items():
        there = named_extras(text)
        for verb, *words in commands(text):
            line = shlex.join([verb, *words])
            needed = next((extra for extra, pattern in NEEDS.items() if re.search(pattern, line)), None)
            if needed is not None and needed not in there:
                lacking.setdefault((page, needed), line)
    assert lacking == {}


def test_what_a_page_installs_and_runs_is_there():
    """Scripts are the repository's, measurements those that there are, and nothing is said to be on an index."""
    known = {file.stem.replace("_", "-") for file in (ROOT / "benchmarks").glob("*.py")}
    for page, text in TEXTS.items():
        assert "pip install likewise" not in text.replace("by `pip install likewise`", ""), page  # of how to release
        scripts = re.findall(r"(?<![\w/])(?:benchmarks|docs/scripts|examples|\.ci)/[\w/]+\.py", text)
        assert [script for script in scripts if not (ROOT / script).is_file()] == [], page
        measurements = re.findall(r"python -m benchmarks\.?\s?([a-z][\w-]+)", text)
        assert [name for name in measurements if name.replace("_", "-") not in known] == [], page


def test_a_command_that_is_not_understood_is_found():
    assert list(commands("    likewise train --lr 1 \\\n      --seed 3  # so\nor `likewise embed x`\n")) == [
        ["train", "--lr", "1", "--seed", "3"],
        ["embed", "x"],
    ]
    assert "unknown option --loss.alpha" in mistake("sweep", ["--recipe", "methods-digits", "--loss.alpha", "1"])
    assert mistake("predict", ["--by", "own"]) is None
