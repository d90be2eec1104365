"""Data files inside installed packages, found by distribution name and never imported."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def installed_file(package: str, path: str) -> Path | None:
    """Return the file at `path` of an installed distribution, or None if either is absent.

    >>> installed_file("no-such-distribution", "data.csv") is None
    True
    """
    try:
        file = Path(str(distribution(package).locate_file(path)))
    except PackageNotFoundError:
        return None
    return file if file.is_file() else None
