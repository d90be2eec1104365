"""Trees: nested lists, tuples and dicts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


def sequence_like(like: Any, items: Iterable[Any]) -> Any:
    """A list or tuple of the type of `like` with other items; of a named tuple a named tuple."""
    return type(like)(*items) if hasattr(like, "_fields") else type(like)(items)
