"""The commands of the pages: each verb understands the options that they give it; nothing is trained.

What they read lies in a folder, made for each word by its ending.
"""

import re
import shlex
from pathlib import Path

import pytest

from likewise.cli import _underscored, sweep
from likewise.configuration import read, written
from likewise.configuration.help import requested_help
from likewise.configuration.options import RECORDS
from likewise.workflows import plan

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name / "README.md" for name in (".", "benchmarks", "examples")),
]
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
            planned = sweep._parse(words)[0]  # noqa: SLF001 - it reads and does nothing else
            planned.trials.update({name: trials[:1] for name, trials in planned.trials.items()})
            plan.configurations(planned)
        elif requested_help(words, verb) is None:
            read([word for word in words if word != "--print_config"], verb=verb)
    except ValueError as error:
        return None if re.search(LACKING, str(error)) else f"likewise {verb} {shlex.join(words)}: {error}"
    return None


TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page, text in TEXTS.items() if any(commands(text))], ids=lambda page: str(page.relative_to(ROOT))
)
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


def test_a_command_that_is_not_understood_is_found():
    assert list(commands("    likewise train --lr 1 \\\n      --seed 3  # so\nor `likewise embed x`\n")) == [
        ["train", "--lr", "1", "--seed", "3"],
        ["embed", "x"],
    ]
    assert "unknown option --loss.alpha" in mistake("sweep", ["--recipe", "methods-digits", "--loss.alpha", "1"])
    assert mistake("predict", ["--by", "own"]) is None
