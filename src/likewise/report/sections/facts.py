"""What a run was made of: settings, data, versions, and the command that repeats it."""

from collections.abc import Iterator, Sequence
from typing import Any

from likewise.report.elements import definitions, sentence, table
from likewise.report.formatting import counted, part_words
from likewise.report.sections.section import Content, Section
from likewise.report.subject import Subject

PARTS = ("train", "validation", "test")


class FactsSection(Section):
    """What the run was made of; of several, what they share, and which run is which."""

    runs = "any"

    def content(self, subjects: Sequence[Subject]) -> Content | None:
        if len(subjects) == 1:
            return Content("Run", "", definitions(_pairs(subjects[0])))
        pairs = [dict(_pairs(subject)) for subject in subjects]
        shared = [(name, value) for name, value in pairs[0].items() if all(of.get(name) == value for of in pairs)]
        rows = [[of.setting, "" if of.seed is None else str(of.seed), of.run.name] for of in subjects]
        listed = table(["setting", "seed", "run"], rows, most=len(rows))
        return Content("Runs", sentence("runs"), definitions(shared) + listed)


def _pairs(subject: Subject) -> Iterator[tuple[str, str]]:
    facts = subject.facts
    yield from ((name, str(facts[name])) for name in ("recipe", "device") if facts.get(name))
    for part, spec in facts.get("parts", {}).items():
        if spec:
            yield part, part_words(spec)
    if "source" in facts:
        yield "features", str(facts["source"])
    yield from _sample_words(facts)
    if facts.get("labels"):
        yield "labels", _label_words(facts["labels"])
    if subject.seed is not None:
        yield "seed", str(subject.seed)
    if facts.get("versions"):
        yield "versions", ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    if facts.get("seconds"):
        yield "took", ", ".join(f"{float(seconds):,.1f} s {what}" for what, seconds in facts["seconds"].items())
    if subject.run.configuration.is_file():
        whole = subject.run.folder.with_name(subject.run.name)
        yield "repeat", f"likewise train --config {whole / subject.run.configuration.name}"


def _sample_words(facts: Any) -> Iterator[tuple[str, str]]:
    sizes = facts.get("samples", {})
    if any(part in sizes for part in PARTS):
        yield "samples", ", ".join(f"{sizes[part]:,} {part}" for part in PARTS if part in sizes)
    if lost := facts.get("undecodable"):
        yield "left out", f"{counted(len(lost), 'image')} that cannot be decoded"


def _label_words(labels: Any) -> str:
    kind, names = labels.get("kind"), labels.get("names") or ()
    if not kind:
        return "none"
    return counted(len(names), "class", "classes") if kind == "classes" else f"sets of {counted(len(names), 'label')}"
