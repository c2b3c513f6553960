"""Scores in the docs: where they stand, the source of each, and whether the files of benchmarks/results agree.

A table stands below a comment that names its file, and what its arrows compare with where its header doesn't:

    <!-- scores: label-sets-yeast, compared with BCE -->

Numbers in prose are quoted in benchmarks/results/claims.yaml, page by page, with files, scores and settings; its first
lines say how.
"""

import csv
import re
from collections.abc import Mapping
from functools import cache
from itertools import product
from math import sqrt
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import yaml
from scipy.special import stdtr, stdtrit  # Student's distribution and its inverse, without a second of imports

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
NUMBER = r"(?<!imbalance )(?<![\w.@/-])[+\u2212-]?\d+(?:,\d{3})*(?:\.\d+)?(?![\w@/]|-way|-shot|\.\d)"
SCORE = (
    r"accura|R-precision|\bshots?\b|\[[+\u2212]\d|\bmAP\b|kNN|precision@|MAP@R|F1\b|Jaccard@10|\bprobe\b|\d points?\b|"
    r"-shot accura|TF-IDF|retriev|classifier|% right"
)
LIST = rf"(?:{NUMBER}(?:,| to| and| or| against| for|–)? ?)*{NUMBER}"
SEVERAL = rf"(?<!imbalance )(?:{NUMBER}(?:,| to| and| or| against| for|–) )+{NUMBER}"
DECIMAL = rf"(?=[^ ]*\.\d){NUMBER}"
BEFORE = r"(?:by|another|up to|within|gains?|costs|near)"
SHARE = rf"({LIST}) (?:%(?! interval)|points?\b)"
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
NAMES = {"probe": "linear probe", "own": "own classifier"}
RAW, BEGUN = "raw", "as it began"
BASELINES = {RAW, BEGUN}
OTHER = "published:", "no file:", "not a score:"
BY_ROW = "by row: "

Claim = Mapping[str, Any]
"""A quote from a page, with the files, scores and settings of its numbers; or the source of what is not computed."""
CLAIMS: Mapping[str, list[Claim]] = {}
if (RESULTS / "claims.yaml").is_file():  # a source distribution has no results
    CLAIMS = yaml.safe_load((RESULTS / "claims.yaml").read_text(encoding="utf-8"))


class Values(dict):
    """By setting and seed, a score's value and the seconds of its run; a cache takes it, as an object."""

    __hash__ = object.__hash__


@cache
def scores(file):
    """Return the values and seconds of each score by setting and seed; raw inputs are a setting, trials too."""
    found = {}
    with (RESULTS / f"{file}.csv").open(newline="", encoding="utf-8") as opened:
        for of in csv.DictReader(opened):
            score = ", ".join([of["evaluation"], of["metric"], *({of.get("subset", "all")} - {"all"})])
            features = of.get("features", "encoder")
            setting = of["setting"] if features == "encoder" else BEGUN if features == BEGUN else RAW
            setting += f", {of['options']}" if of.get("options") else ""
            of_setting = found.setdefault(score, Values()).setdefault(setting, {})
            place = len(of_setting) if setting in BASELINES else int(of.get("seed", 0))
            of_setting[place] = float(of["value" if "value" in of else "validation"]), float(of.get("seconds", 0))
    return found


def interval(values):
    """Return a mean and half of Student's 95 % interval, both in percent; of one value the second is None."""
    values = 100 * np.asarray(values)
    if len(values) < 2:
        return values.mean(), None
    return values.mean(), stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / sqrt(len(values))


def paired(of_score, setting, first):
    """Return the differences of two settings by seed, to raw inputs those to their mean."""
    ours, theirs = of_score[setting], of_score[first]
    if first == RAW:
        theirs = dict.fromkeys(ours, (fmean(value for value, _ in theirs.values()), 0.0))
    return [ours[seed][0] - theirs[seed][0] for seed in ours if seed in theirs]


@cache
def by_holm(of_score, first):
    """Return the settings that differ from the first by more than chance, with the sign of their difference."""
    p_values = {}
    for setting in of_score if first in of_score else ():  # nothing differs from what has no such score
        each = paired(of_score, setting, first) if setting not in {first, *BASELINES} else []
        if len(each) > 1:
            centre, half = interval(each)
            error = half / stdtrit(len(each) - 1, 0.975)
            p = 2 * stdtr(len(each) - 1, -abs(centre) / error) if error > 1e-9 else 1.0  # equal differences say nothing
            p_values[setting] = p, "↑" if centre > 0 else "↓"
    found = {}
    for place, (setting, (p, arrow)) in enumerate(sorted(p_values.items(), key=lambda item: item[1][0])):
        if p > 0.05 / (len(p_values) - place):
            break
        found[setting] = arrow
    return found


def numbers(text):
    """Return the numbers of a text as they are written."""
    return re.findall(NUMBER, text)


def agrees(written, value, *, signed=True):
    """Tell whether a number is a value rounded to the digits that it has."""
    plain = written.replace(",", "").replace("\u2212", "-").lstrip("+")
    decimals = len(plain.partition(".")[2])
    value = value if signed else abs(value)
    return abs(float(plain) - value) <= 0.5 * 10**-decimals + 1e-6 and (float(plain) or value) * value >= 0


# Tables ---------------------------------------------------------------------------------------------------------------


def tables(page):
    """Yield each table: what the comment above it says, the heading or bold line above it, its rows of cells."""
    said, title, lines = "", "", []
    for line in [*without_code(page).splitlines(), ""]:
        if line.startswith("|"):
            lines.append([cell.strip() for cell in line.strip("|").split("|")])
            continue
        if lines:
            yield said, title, [lines[0], *lines[2:]]
            said, lines = "", []
        if found := re.fullmatch(r"<!-- scores: (.*) -->", line):
            said = found[1]
        if found := re.match(r"(?:#+ |\*\*)([^*]+)", line):
            title = found[1].strip()


def is_of_scores(rows):
    """Tell whether a table has numbers below a header that names scores."""
    header, *body = ("|".join(row) for row in rows)
    return bool(re.search(rf"{SCORE}|\bscores?\b", header) and numbers("|".join(body)))


def mistakes_of_table(said, title, rows):
    """Say which cells of a table are not what its files say."""
    if said.startswith(OTHER):
        return []
    if said.startswith(BY_ROW):
        return _mistakes_by_row(said.removeprefix(BY_ROW).split(), rows)
    return _mistakes_of_settings(said, title, rows)


def _mistakes_of_settings(said, title, rows):
    """Say which cells are wrong of a table with a row for each setting."""
    names, _, first = said.partition(", compared with ")
    header, *body = rows
    files = iter(names.split())
    found, wrong = scores(next(files)), []
    if header[0] != "score" and " " not in names:
        missing = {setting for each in found.values() for setting in each} - BASELINES - {row[0] for row in body}
        wrong += [f"{title}: no row of {setting}" for setting in sorted(missing)]
    for number, (name, *cells) in enumerate(body):
        if name.startswith("*published:*"):
            continue
        if not any(cells):  # a row that names what follows
            found = scores(next(files)) if number else found
            continue
        for head, cell in zip(header[1:], cells, strict=True):
            if head in {"runs", "over", "paired over"}:
                continue
            if header[0] == "score":
                expected = _of_score(found[name], head)
            else:
                expected = _of_setting(found, title, head, RAW if name.startswith("raw ") else name, first)
            if not _same(cell, *expected):
                wrong.append(f"{title}: {name}, {head}: {cell!r}, the file says {expected}")
    return wrong


def _mistakes_by_row(files, rows):
    """Say which cells are wrong of a table with a file and a score for each row; "-" is no file."""
    (_, _, _, base, *heads), *body = rows
    wrong = []
    for file, (data, _, score, *cells) in zip(files, body, strict=True):
        of_score = {} if file == "-" else scores(file)[score]
        first = None
        for head, cell in zip([base, *heads], cells, strict=True):
            if not (of_score and cell):
                continue
            name = re.sub(r" ?[\d.]+( ± [\d.]+)?( [↑↓])?$", "", cell)
            known = [f"{each}, {name}" if name else each for each in head.split(" or ")] + [name, BEGUN, RAW]
            setting = next(each for each in known if each in of_score)
            first = first or setting
            centre, half = interval([value for value, _ in of_score[setting].values()])
            plain = half is None or setting in BASELINES
            arrow = "" if plain else by_holm(of_score, first if head != base else setting).get(setting, "")
            if not _same(cell.removeprefix(name), [centre] if plain else [centre, half], arrow):
                wrong.append(f"{data}, {head}: {cell!r}, the file says {centre}, {half}, {arrow}")
    return wrong


def _of_score(of_score, head):
    """Return the numbers of a cell whose row is a score, and whose column a setting or the difference of two."""
    first, second = (setting for setting in of_score if setting not in BASELINES)
    if head.startswith("difference"):
        return difference(of_score, second, first), ""
    return interval([value for value, _ in of_score[head].values()])[:1], ""


def _of_setting(found, title, head, setting, first):
    """Return the numbers of a cell whose row is a setting, and its arrow."""
    if head == "training":
        seconds = [of for each in found.values() for _, of in each.get(setting, {}).values()]
        return ([fmean(seconds)] if setting not in BASELINES else []), ""
    names = {narrow(score): score for score in found} | {score.lower(): score for score in found}
    of_score = found[names[next(key for key in (head, head.lower(), title.lower()) if key in names)]]
    if head.startswith("difference to "):
        base = head.removeprefix("difference to ")
        return (difference(of_score, setting, base) if setting not in {base, *BASELINES} else ()), ""
    if setting not in of_score:
        return (), ""
    centre, half = interval([value for value, _ in of_score[setting].values()])
    if half is None or (setting in BASELINES and (half < 1e-9 or not head.startswith("score"))):
        return [centre], ""
    if head.startswith("score"):
        return [centre, max(0.0, centre - half), min(100.0, centre + half)], ""
    return [centre, half], by_holm(of_score, first).get(setting, "")


def _same(cell, expected, arrow):
    written = numbers(cell)
    return (
        len(written) == len(expected)
        and all(map(agrees, written, expected))
        and arrow == "".join(re.findall("[↑↓]", cell))
    )


def difference(of_score, setting, first):
    """Return the mean difference of two settings, paired by seed, and the ends of its interval, in points."""
    centre, half = interval(paired(of_score, setting, first))
    return [centre] if half is None else [centre, centre - half, centre + half]


def narrow(score):
    """Return a score's name in a narrow column: "probe mAP" of "linear probe, mAP"."""
    for short, long in NAMES.items():
        score = score.replace(f"{long}, ", f"{short}, ")
    score = score.removeprefix("few-shot, ").removesuffix(" accuracy").removeprefix("retrieval, ")
    return score.replace(", ", " ", 1)


# Prose ----------------------------------------------------------------------------------------------------------------


def without_code(page):
    """Return a page without blocks of code, indented or fenced."""
    page = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(?<=\n)\n(?: {4}[^\n]*\n)+", "\n", page)


def prose(page):
    """Return the text of a page without comments, tables, code and spans of code, its white space single."""
    page = COMMENT.sub("", without_code(page))
    page = re.sub(r"^(?:\||#).*$", "\n", page, flags=re.MULTILINE)
    page = re.sub(r"`[^`]*`|\]\([^)]*\)|\$\$.*?\$\$", "", page, flags=re.DOTALL)
    paragraphs = re.split(r"\n\s*\n|\n(?=- |\d+\. )", page)
    return "\n".join(re.sub(r"\s+", " ", each) for each in paragraphs)


def mistake_of_claim(claim):
    """Say what of a claim is not what its source says; None where all is."""
    if "source" in claim:
        return None if claim["source"].startswith(OTHER) else f"{claim['quote']!r}: a source begins with one of {OTHER}"
    files, names, settings, kind = claim["files"], claim["scores"], claim["settings"], claim.get("kind")
    if kind == "gain":
        longer, shorter = map(scores, files)
        found = [
            [_value(longer[name], setting)[0] - _value(shorter[name], setting)[0]]
            for setting, name in product(settings, names)
        ]
    else:
        every = product(files, names, settings)
        found = [_value(scores(file)[name], setting) for file, name, setting in every]
    quote = claim["quote"]
    right = _says(numbers(quote), found, kind, quote) and _points_there(quote, found, settings)
    return None if right else f"{quote!r}: the files say {found}"


def _points_there(quote, found, settings):
    """Tell whether "above" and "below" in a quote are the signs of the differences."""
    words = {1: r"\b(above|ahead|higher|better)\b", -1: r"\b(below|behind|lower|worse)\b"}
    signs = [sign for sign, those in words.items() if re.search(those, quote)]
    if len(signs) != 1 or not all(" \u2212 " in setting for setting in settings):
        return True
    return all(round(value, 2) * signs[0] >= 0 for value, *_ in found)


def _value(of_score, setting):
    """Return the mean of a setting and half of its interval, or the difference of two with the ends of its interval."""
    ours, _, first = setting.partition(" \u2212 ")
    return difference(of_score, ours, first) if first else interval([value for value, _ in of_score[ours].values()])


def _says(written, found, kind, quote):
    firsts = [each[0] for each in found]
    if kind == "range":
        ends = (min(firsts, key=abs), max(firsts, key=abs))
        ends, written = (ends, written) if len(written) == 2 else (firsts, written * len(firsts))  # "all by 3"
        return all(agrees(each, end, signed=False) for each, end in zip(written, ends, strict=True))
    if kind == "most":
        return len(written) == 1 and agrees(written[0], max(firsts, key=abs), signed=False)
    expected = [value for each in found for value in (each if "[" in quote or "±" in quote else each[:1])]
    return len(written) == len(expected) and all(
        agrees(each, value, signed=each[0] in "+-\u2212" or "[" in quote)
        for each, value in zip(written, expected, strict=True)
    )


def without_source(page, claims):
    """Return the numbers of prose that look like scores and stand in no claim, with what stands around them."""
    text, found = prose(page), []
    for claim in claims:
        text = text.replace(claim["quote"], re.sub(NUMBER, "#", claim["quote"]))
    for sentence in re.split(r"(?<=[.!?]) |\n", text):
        if not re.search(SCORE, sentence):
            continue
        patterns = [
            SHARE,
            rf"({DECIMAL})",
            *([rf"({SEVERAL})", rf"{BEFORE} ({NUMBER})"] if " point" in sentence else []),
        ]
        places = {at for each in patterns for of in re.finditer(each, sentence) for at in range(*of.span(1))}
        found += [
            f"{of[0]}: …{sentence[max(0, of.start() - 50) : of.end() + 40]}…"
            for of in re.finditer(NUMBER, sentence)
            if of.start() in places
        ]
    return found
