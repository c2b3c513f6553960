"""What the pages must have: every loss where a reader looks for it, scores with sources, what is open in one list."""

import hashlib
import importlib
import json
import re
import runpy
from pathlib import Path

import pytest

import likewise as lw
from likewise.losses import ContrastiveLoss
from scores_in_docs import CLAIMS, is_of_scores, mistake_of_claim, mistakes_of_table, prose, tables, without_source

DOCS = Path(__file__).parent.parent / "docs"
ROOT = DOCS.parent
READ = [*sorted(DOCS.rglob("*.md")), *(ROOT / folder / "README.md" for folder in (".", "benchmarks", "examples"))]
TEXTS = {page.relative_to(ROOT).as_posix(): page.read_text(encoding="utf-8") for page in READ}
LOSSES = sorted(name for name in lw.__all__ if name.endswith("Loss"))
CONTRASTIVE = [name for name in LOSSES if issubclass(getattr(lw, name), ContrastiveLoss)]
ENGLISH = [name for name in TEXTS if re.fullmatch(r"docs/losses/[^.]+\.md", name)]
PAGES = {loss: name for name in ENGLISH for loss in re.findall(r"^::: likewise\.(\w+Loss)$", TEXTS[name], re.MULTILINE)}
TRANSLATED = [name for name in TEXTS if re.fullmatch(r"docs/.*\.\w+\.md", name)]
REPOSITORIES = "SupCon-Framework", "solo-learn", "lightly", "sthalles/SimCLR", "baselines of these"
SECTIONS = ["When to use it", "Pull and push", "Example", "Source", "API"]


def english(page):
    """Return the page that another one translates."""
    return re.sub(r"\.\w+\.md$", ".md", page)


def test_every_loss_has_one_page_where_a_reader_looks_for_it():
    """Opening with an equation; its sections in their order; in the lists of losses and the table of the README."""
    assert sorted(PAGES) == LOSSES
    assert len(set(PAGES.values())) == len(ENGLISH) == len(LOSSES)
    for loss, name in PAGES.items():
        page = TEXTS[name]
        headings = re.findall(r"^## ([^,\n]+)", page, re.MULTILINE)
        assert headings == [each for each in SECTIONS if each != "Pull and push" or loss in CONTRASTIVE], name
        assert page.index("\n$$\n") < page.index("\n## "), name
        link = f"({name.removeprefix('docs/')})"
        assert link in TEXTS["docs/index.md"], name
        assert link in TEXTS["docs/one-equation.md"] or loss not in CONTRASTIVE, name
        assert re.search(rf"^\|.*`{loss}`", TEXTS["README.md"], re.MULTILINE), name


@pytest.mark.parametrize("page", [name for name in TRANSLATED if name.startswith("docs/losses/")])
def test_a_page_in_another_language_has_the_equations_and_the_code_of_the_english_one(page):
    """But for words in equations and comments in code; each leads to the other."""
    both = TEXTS[page], TEXTS[english(page)]
    for pattern, words in ((r"\$\$\n(.*?)\$\$", r"\\text\{[^}]*\}|[^\x00-\x7f]"), (r"```pycon\n(.*?)```", r"  #.*")):
        ours, theirs = ([re.sub(words, "", one) for one in re.findall(pattern, of, re.DOTALL)] for of in both)
        assert ours == theirs
    for text, other in zip(both, (english(page), page), strict=True):
        assert f"({other.rpartition('/')[2]})" in text.splitlines()[2]


def test_every_page_of_claims_is_there():
    """A page that was moved takes its claims with it."""
    assert CLAIMS.keys() <= TEXTS.keys()


def mistakes(text, claims):
    """Return what is wrong with the scores of a page: in tables, in quotes, and numbers without a source."""
    of_scores = [(said, title, rows) for said, title, rows in tables(text) if is_of_scores(rows)]
    wrong = [f"{title}: no source" for said, title, _ in of_scores if not said]
    wrong += [line for said, *table in of_scores if said for line in mistakes_of_table(said, *table)]
    wrong += [f"not in the page: {claim['quote']}" for claim in claims if claim["quote"] not in prose(text)]
    return wrong + [line for line in map(mistake_of_claim, claims) if line] + without_source(text, claims)


@pytest.mark.parametrize("page", TEXTS)
def test_every_score_is_what_its_file_says(page):
    """Of tables and of prose; `scores_in_docs` says how a source is named."""
    assert mistakes(TEXTS[page], CLAIMS.get(page, [])) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"(?<=\n\| SupCon \| )\d\d", "12"),  # a number of a cell, and of an interval
        (r"(?<=\| \d\d\.\d ± )\d\.\d", "9.9"),
        (r" [↑↓](?= \|)", ""),
        (r"(?<=\d) \|(?= \d)", " ↓ |"),
        (r"\n\| SupCon \|.*", ""),
        (r"<!-- scores: .*? -->", ""),
        (r"\Z", "\n\nMSC is elsewhere above it by 3.1 % of mAP.\n"),
    ],
)
def test_a_score_that_is_not_so_is_found(old, new):
    """Any changed digit, arrow or quote, a setting left out, and numbers without a source."""
    page = "docs/results/label-sets.md"
    changed = re.sub(old, new, TEXTS[page], count=1)
    assert changed != TEXTS[page]
    assert mistakes(changed, CLAIMS[page]) != []
    for claim in (claim for claim in CLAIMS[page] if "files" in claim):
        number = re.search(r"\d+(?:\.\d)?", claim["quote"])
        assert mistake_of_claim({**claim, "quote": claim["quote"].replace(number[0], f"7{number[0]}", 1)})


VERBS = r"(?:measured|compared|tried|checked|tested|looked into|run|kept)\b"
OPEN = re.compile(
    rf"\bnot yet\b|[Nn]ot measured|(?:ha(?:s|ve)|w(?:as|ere))(?:n't| not) (?:yet )?(?:been )?{VERBS}|unmeasured|"
    r"untested|no counterpart|[Nn]o results?\b|no published|unpublished|no GPU has|No GPU was|nothing was measured|"
    r"(?<!none )\b(?:is|are) missing|[Oo]nly these means|not estimated"
)


def open_sentences():
    """Return every sentence of the docs that says what is not there yet, with its page."""
    found = []
    for page, whole in TEXTS.items():
        text = re.sub(r"^```.*?^```$|<!--.*?-->", "", whole, flags=re.DOTALL | re.MULTILINE)
        for paragraph in re.split(r"\n\s*\n|\n(?=- |\d+\. |\|)", text):
            sentences = re.split(r"(?<=[.!?]) (?=[A-Z`*\[])", re.sub(r"\s+", " ", paragraph).strip(" |-"))
            found += [f"{page}: {each}" for each in sentences if OPEN.search(each)]
    return found


def test_what_is_open_stands_in_one_list():
    """`pytest -n 0 -rP tests/test_docs.py -k open` prints it, to be read at each release: is each still so?"""
    found = open_sentences()
    print("\n".join(found), "\nScores whose single runs were not kept:")
    for page, claims in CLAIMS.items():
        for claim in claims:
            if claim.get("source", "").startswith("no file:"):
                print(f"{page}: {claim['quote']} ({claim['source']})")
    listed = (ROOT / "tests" / "open_sentences.txt").read_text(encoding="utf-8").splitlines()
    assert sorted(set(found) - set(listed)) == [], "new: if they are so, add them to tests/open_sentences.txt"
    assert sorted(set(listed) - set(found)) == [], "gone: take them out of tests/open_sentences.txt"


def table_below(page, header):
    """Return the rows below a table's header, as lists of cells."""
    lines = page[page.index(header) :].split("\n\n")[0].splitlines()[2:]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_recipes_and_studies_say_which_data_they_are_for():
    """As their files do; what is for all data says so."""
    page, folder = TEXTS["docs/recipes.md"], ROOT / "src" / "likewise" / "training" / "recipes"
    only = {}
    for file in [*(folder / "studies").glob("*.yaml"), *(folder / "methods").glob("*.yaml")]:
        of = re.search(r"^for: \[(.*)\]$", file.read_text(encoding="utf-8"), re.MULTILINE)
        only[file.parent.name, file.stem] = of[1].split(", ") if of else ["all"]
    rows = table_below(page, "| study | data | settings |")
    assert {(study.strip("`"), data.replace("`", "")) for study, data, _ in rows} == {
        (name, ", ".join(data)) for (room, name), data in only.items() if room == "studies"
    }
    rows = table_below(page, "| method | loss | labels |")
    said = {name: row for row in rows for name in re.findall(r"`([^`]+)`", row[0])}
    assert said.keys() == {name for room, name in only if room == "methods"}
    for name, (_, words, _) in said.items():
        of_label_sets = "vectors" in only["methods", name]
        assert of_label_sets == words.startswith(("for `vectors`, `texts` and `image-folder`", "for the same")), name
        assert ("for the few-shot data" in words) == ("cifar-fs" in only["methods", name]), name


def test_the_table_of_kernels_is_that_of_its_file():
    page = TEXTS["benchmarks/README.md"]
    kernels = json.loads((ROOT / "benchmarks" / "results" / "kernels-sm_90.json").read_text(encoding="utf-8"))[
        "kernels"
    ]
    names = {"forward": "sums", "forward with average": "average", "backward of both sides": "both"}
    rows = table_below(page, "| kernel | rows | tiles, warps, stages |")
    assert len(rows) == 2 * len(names)
    for kernel, precision, *cells in rows:
        wanted = names[kernel], "not self", 128, {"bf16": "bf16", "two halves": "fp32"}[precision]
        (of,) = (each for each in kernels if tuple(each.values())[:4] == wanted)
        own, other, warps, stages = of["tiles"]
        figures = f"{of['registers']}", f"{of['shared'] / 1024:.0f} KiB", f"{of['products']}, {of['exponentials']}"
        assert cells == [f"{own} × {other}, {warps}, {stages}", *figures]
    free, nowhere = (sum(not each[name] for each in kernels) for name in ("spills", "spills_of_all"))
    assert f"`results/kernels-sm_90.json` has {len(kernels)} variants" in page
    assert f"Of the {len(kernels)}, {free} spill no register in that loop, and {nowhere} nowhere" in page
    assert f"the most shared memory is {max(each['shared'] for each in kernels) / 1024:.0f} KiB" in page


def test_predictions_of_scaling_are_those_of_the_script(capsys):
    """And the page says for which backend its times are."""
    page, script = TEXTS["docs/performance.md"], DOCS / "scripts" / "scaling_predictions.py"
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out in page
    assert '`backend="triton"`, which has to be asked for: "auto" takes tiles' in page
    assert lw.SupConLoss().backend == "auto"


def test_no_picture_is_older_than_what_it_shows(monkeypatch):
    """By a digest of its data and of the code that draws it."""
    monkeypatch.syspath_prepend(DOCS / "scripts")
    pictures = importlib.import_module("pictures")
    noted = json.loads((DOCS / "images" / "digests.json").read_text(encoding="utf-8"))
    assert {path.name for path in (DOCS / "images").iterdir()} - {"digests.json"} == noted.keys()
    old = [name for name in noted if pictures.digest(name) != noted[name]]
    assert old == [], f"draw them again: uv run python docs/scripts/pictures.py {' '.join(old)}"


@pytest.mark.parametrize("page", TRANSLATED)
def test_a_translation_is_of_the_english_page_as_it_is(page):
    """It notes a digest of the English text; where that has moved on, read both, and note the new one."""
    digest = hashlib.sha256(prose(TEXTS[english(page)]).encode()).hexdigest()[:12]
    noted = re.findall(r"<!-- translated: (\w+) -->", TEXTS[page])
    assert noted == [digest], f"bring the translation up to date, and note <!-- translated: {digest} -->"


@pytest.mark.slow
def test_a_number_after_an_option_is_its_default():
    """In the list of further options, where it says what the option is, as in "`--seed 0`, the seed"."""
    from likewise.configuration import resolve  # noqa: PLC0415 - where it is needed

    page = TEXTS["docs/command.md"]
    said = re.findall(r"^- `--(\w+) ([\d.]+)`, ", page[page.index("Further\noptions:") :], re.MULTILINE)
    assert len(said) >= 4
    options = resolve({})
    assert {name: float(value) for name, value in said} == {name: getattr(options, name) for name, _ in said}


def test_scores_of_others_name_their_paper():
    """A paper with its year, or a repository."""
    page = TEXTS["docs/results/others.md"]
    for header, source in (("| source | network |", 0), ("| method | paper |", 1)):
        for row in table_below(page, header):
            of = row[source]
            assert re.search(r", (19|20)\d\d$", of) or of.split(",")[0] in REPOSITORIES, row
