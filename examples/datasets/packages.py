"""Data files of installed packages, which are found without importing the packages."""

from __future__ import annotations

import sys
from pathlib import Path


def installed_file(path: str) -> Path | None:
    """Return the file at `path` in the first folder of `sys.path` that has it, or None.

    path: begins with the name of a package.
    """
    files = [Path(folder) / path for folder in sys.path]
    return next((file for file in files if file.is_file()), None)
