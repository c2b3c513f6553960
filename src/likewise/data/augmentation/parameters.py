"""Checks of the parameters of augmentations."""


def check_probability(name: str, value: float) -> None:
    """Refuse a probability outside [0, 1]."""
    if not 0 <= value <= 1:
        raise ValueError(f"expected {name} in [0, 1], got {value}: 0 switches it off")


def check_size(name: str, value: float, most: float = float("inf")) -> None:
    """Refuse a size of a change that is negative or above `most`."""
    if not 0 <= value <= most:
        allowed = "of at least 0" if most == float("inf") else f"from 0 to {most}"
        raise ValueError(f"expected {name} {allowed}, got {value}: 0 switches it off")


def check_range(name: str, values: tuple[float, float], most: float = float("inf")) -> None:
    """Refuse a pair that is not a range of positive numbers."""
    low, high = values
    if not 0 < low <= high <= most:
        allowed = "a positive range (low, high)" if most == float("inf") else f"a range (low, high) within (0, {most}]"
        raise ValueError(f"expected {name} as {allowed}, got {values}: put the smaller number first")
