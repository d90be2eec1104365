"""Machine code on disk: what processes compile once, and later ones read.

A file is the digest of its content and then the content. What is damaged is not read: LLVM crashes
on machine code that is incomplete. A folder holds `MOST_BYTES` at most: those that have not been
read for the longest time go.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import re
import tempfile
from contextlib import suppress
from pathlib import Path

DIGEST_SIZE = hashlib.sha256().digest_size
MOST_BYTES = 64 << 20  # of a folder: some 10,000 loops
OWN_NAME = re.compile(r"[0-9a-f]{64}(\.o)?")  # the user may have named a folder of other files too
WRITES_PER_TRIM = 64
_WRITES = itertools.count()


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
    with suppress(OSError):
        os.utime(path)
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
    if next(_WRITES) % WRITES_PER_TRIM == 0:
        _trim(path.parent)


def _trim(folder: Path) -> None:
    """Remove the oldest files of a folder that holds too much, down to three quarters of that.

    Another process may do so too, or be reading one: a file that is open can still be read."""
    found = []
    for entry in os.scandir(folder):
        if OWN_NAME.fullmatch(entry.name):
            with suppress(OSError):
                found.append((entry.stat().st_mtime, entry.stat().st_size, entry.path))
    excess = sum(size for _, size, _ in found) - MOST_BYTES
    for _, size, path in sorted(found) if excess > 0 else []:
        if excess > -MOST_BYTES // 4:
            with suppress(OSError):
                os.unlink(path)
            excess -= size
