"""What somebody may have meant: the nearest options and classes."""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from likewise.configuration.classes import Class, find, kinds
from likewise.configuration.guesses import METHODS, near_data
from likewise.configuration.options import ALIASES, HIDDEN, SLIPS
from likewise.configuration.values import folded, part_of
from likewise.parts import is_spec

SURE = 0.9
"""How alike letters are where nothing else can be meant."""

MANY = 40
"""With more classes of a kind, as of torch.nn, an error lists none."""


def near_classes(option: str, name: str, base: Class, names: Sequence[str] = ()) -> str:
    """Say that no class of a kind, or none of some names, is called as an option wants, and which are near."""
    known = list(names or kinds(base))
    last = name.rpartition(".")[2] if names else name
    folds = {folded(one).removesuffix(folded(base.name)): one for one in known} | {folded(one): one for one in known}
    folds |= {usual: path for usual, path in METHODS.items() if path in known}
    near = [folds[one] for one in get_close_matches(folded(last), folds, n=4, cutoff=0.65)]
    near += [one for one in get_close_matches(last, known, n=3) if one not in near]
    near = near or (near_data(name) if base.name == "Source" else [])
    many = not names and len(known) > MANY
    told = f"a class for --{option}" if many else f"{option} to be one of {', '.join(known)}"
    told, unique = f"expected {told}, got {name}", list(dict.fromkeys(near))[:2]
    remedy = "give its import path, module.Name" if many else "name one of them"
    return f"{told}, did you mean {' or '.join(unique)}?" if unique else f"{told}: {remedy}"


def near_options(option: str, values: Mapping[str, Any], root: Class, kind: Class | None) -> list[str]:
    """Return the options that are near one that does not exist: by its usual name, its last name, or its letters."""
    known = list(_options(values, root))
    part, _, last = option.rpartition(".")
    verb_has = {name: of for name, of in ALIASES.items() if of in known}
    short = SLIPS.get(option)
    if not part and short and (short in verb_has or short in known or short == "device"):
        return [_dashed(short)]
    same = [one for one in known if one.rpartition(".")[2] == last]
    siblings = {one.rpartition(".")[2]: one for one in known if one.rpartition(".")[0] == part}
    names = siblings if part else {**siblings, **dict.fromkeys(SLIPS, ""), **{name: name for name in verb_has}}
    close = get_close_matches(last, names, n=3, cutoff=0.7)
    close = close[:1] if close and SequenceMatcher(None, last, close[0]).ratio() > SURE else close
    near = [names[one] or SLIPS[one] for one in close]
    folds = {folded(one): one for one in siblings}
    near = [siblings[folds[folded(last)]]] if folded(last) in folds else near
    if not near and not same and kind is not None and part:
        near = [f"{part} {name}" for name, of in _others(part, root) if last in of.parameters()]
    return [_dashed(one) for one in dict.fromkeys([*same, *near])]


def _dashed(name: str) -> str:
    return f"--{name.replace('_', '-') if name in ALIASES else name}"


def _options(values: Mapping[str, Any], root: Class) -> Iterator[str]:
    """Yield the options that there are, with those of the chosen classes."""
    yield from (name for name in root.parameters())
    yield from _within(values, "")


def _within(values: Mapping[str, Any], above: str) -> Iterator[str]:
    for name, value in values.items():
        spec = value[-1] if isinstance(value, list) and value else value
        if is_spec(spec) and (kind := find(spec["class_path"])):
            yield from (f"{above}{name}.{one}" for one in kind.parameters() if one not in HIDDEN)
            yield from _within(spec["init_args"], f"{above}{name}.")


def _others(part: str, root: Class) -> list[tuple[str, Class]]:
    """Return the classes that could be chosen for a part."""
    parameter = root.parameters().get(part)
    base = part_of(parameter.annotation) if parameter else None
    paths = kinds(base).items() if base else ()
    return [(name, kind) for name, path in paths if (kind := find(path))]
