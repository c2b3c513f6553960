"""What Lightning warns of in every short training of a test."""

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items):
    """Ignore it here alone."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("ignore:.*LeafSpec.*"))
            item.add_marker(pytest.mark.filterwarnings("ignore:.*does not have many workers.*"))
