"""The commit of sources: of a checkout, or the one that a package was built of.

A build reads this file too, before anything is installed: it imports the standard library alone.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

FILE = "commit.txt"  # in a package that was built of a checkout (`hatch_build.py`)


def commit_of(folder: Path) -> str:
    """Return the commit of the sources in `folder`, "with changes" if they were changed since.

    Empty where they are in no repository of git; one that only surrounds them does not count, as it
    does around a virtual environment.
    """
    if (built := folder / FILE).exists():
        return built.read_text(encoding="utf-8").strip()
    if not _git(folder, "ls-files"):
        return ""
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no", ".")
    return _git(folder, "rev-parse", "HEAD")[:12] + (" with changes" if changes else "")


def _git(folder: Path, *command: str) -> str:
    """Return what git prints; nothing if it fails, or is not installed."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *command], capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""
