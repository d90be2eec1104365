"""Machine code on disk: what processes compile once, and later ones read.

A file is the digest of its content and then the content. What is damaged is not read: LLVM crashes
on machine code that is incomplete.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

DIGEST_SIZE = hashlib.sha256().digest_size


def user_folder(kind: str) -> Path | None:
    """The folder of machine code of a kind in the user's cache; None without a home folder, as in a
    container without accounts."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return None if cache.startswith("~") else Path(cache) / "gdt" / kind


def read_code(path: Path) -> bytes | None:
    """The content of a file; None if there is no file, or if it is damaged."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    digest, content = stored[:DIGEST_SIZE], stored[DIGEST_SIZE:]
    return content if hashlib.sha256(content).digest() == digest else None


def write_code(path: Path, content: bytes) -> None:
    """Write a file in one step: no other process reads half of it, and a full disk keeps nothing.

    Raises OSError where the folder cannot be made or written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = tempfile.NamedTemporaryFile(dir=path.parent, delete=False)  # noqa: SIM115
    try:
        with file:
            file.write(hashlib.sha256(content).digest() + content)
        os.replace(file.name, path)
    except BaseException:
        os.unlink(file.name)
        raise
