"""What a word that is not known may have been meant to be."""

from collections.abc import Iterable
from difflib import get_close_matches


def suggest(word: str, known: Iterable[str], otherwise: str = "", *, most: int = 1, cutoff: float = 0.6) -> str:
    """Return the end of an error: which of the known words are nearest, or else what `otherwise` says.

    Example:
        >>> suggest("trian", ["train", "evaluate"]), suggest("x", ["train"], ": see --help")
        (', did you mean train?', ': see --help')
    """
    near = get_close_matches(word, list(known), most, cutoff)
    return f", did you mean {' or '.join(near)}?" if near else otherwise
