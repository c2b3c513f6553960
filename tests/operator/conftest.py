"""The backend that a test names as its argument: every one in turn."""

import pytest
from operator_checks import BACKENDS


@pytest.fixture(params=BACKENDS)
def backend(request):
    return request.param
