"""The classes or labels of samples in words."""

from likewise.evaluation.features import Features

MOST_NAMED = 5  # labels of a sample that are named


def label_words(features: Features) -> list[str]:
    """Return the classes or labels of samples in words, such as 'cat + dog', or 'no label'."""
    if features.label_kind is None:
        return [""] * len(features)
    if features.label_kind == "classes":
        return [features.names[label] for label in features.classes.tolist()]
    found: list[str] = []
    for labels in features.sets:
        names = [features.names[label] for label in labels.nonzero().flatten().tolist()]
        more = "" if len(names) <= MOST_NAMED else f" and {len(names) - MOST_NAMED} more"
        found.append((" + ".join(names[:MOST_NAMED]) or "no label") + more)
    return found
