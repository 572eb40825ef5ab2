"""How much the tests do: small amounts by default, large ones with TENSORLEND_TEST=full."""

import os
from typing import Any

import pytest

FULL = os.environ.get("TENSORLEND_TEST") == "full"


def only_in_full(*values: Any, why: str) -> Any:
    """Returns the values of a parametrized test that only a full run tests."""
    return pytest.param(*values, marks=pytest.mark.skipif(not FULL, reason=f"{why}: TENSORLEND_TEST=full runs it"))
