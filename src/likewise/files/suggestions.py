"""Suggestions of the known words that an unknown word may have been meant to be."""

from collections.abc import Iterable, Mapping
from difflib import get_close_matches


def suggest(
    word: str,
    known: Iterable[str],
    otherwise: str = "",
    *,
    names: Mapping[str, object] | None = None,
    most: int = 1,
    cutoff: float = 0.6,
) -> str:
    """Return the end of an error: which known words are nearest, by their `names`, or else what `otherwise` says."""
    near = get_close_matches(word, list(known), most, cutoff)
    shown = [str((names or {}).get(close, close)) for close in near]
    return f", did you mean {' or '.join(shown)}?" if near else otherwise
