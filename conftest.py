"""Which rooms are slow as a whole: they import Lightning, scikit-learn or torchvision, which takes many seconds."""

import pytest

ROOMS = ("cli", "data", "diagnostics", "evaluation", "models", "report", "training")
TESTS = ("augmentation", "gradients", "snapshots", "sources", *ROOMS)
SLOW = [*(f"src/likewise/{room}" for room in ROOMS), *(f"tests/test_{name}.py" for name in TESTS)]


def _is_slow(path, config):
    return any(path.is_relative_to(config.rootpath / room) for room in SLOW)


def pytest_ignore_collect(collection_path, config):
    """Do not even import them where slow tests are left out."""
    return True if "not slow" in config.option.markexpr and _is_slow(collection_path, config) else None


def pytest_collection_modifyitems(items, config):
    """Mark their examples, too."""
    for item in items:
        if _is_slow(item.path, config):
            item.add_marker(pytest.mark.slow)
