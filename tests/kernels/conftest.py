from __future__ import annotations

from collections.abc import Iterator

import pytest

from . import harness


@pytest.fixture(scope="session", autouse=True)
def sanitizer_processes() -> Iterator[None]:
    yield
    harness.close_runners()
