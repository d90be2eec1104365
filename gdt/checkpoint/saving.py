"""Writing a checkpoint: every process writes the shards that it holds, each to its place."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from gdt.arguments import checked
from gdt.array.array import DistributedArray, move_to_layouts
from gdt.backend import backend_of
from gdt.checkpoint.checksums import checksum, checksums, slabs
from gdt.checkpoint.entries import (
    CODES,
    Index,
    dtype_of,
    entries_of,
    nbytes_of,
    of_first_process,
    shape_of,
)
from gdt.checkpoint.restoring import contents
from gdt.comm.messages import gathered
from gdt.errors import CheckpointError, error
from gdt.sharding import processes
from gdt.state import Tree

SHOWN = 10  # lines of an error that lists entries
T = TypeVar("T")
# A part that a process has written: the name of its array, its bounds, and its checksum.
Written = tuple[str, list[tuple[int, int]], str]


@checked
def save(path: str | os.PathLike[str], tree: Tree) -> Path:
    """Write all arrays and counters of a tree to one safetensors file, and return its path.

    tree: a Module, an Optimizer, or nested dicts and lists of them, of arrays and of ints; names
    are joined with dots, as in `model.dense1.weight`. Every shard is written to its place in the
    file once, so no whole array is put together in memory. Checksums (CRC-32) of up to 64 slabs of
    rows of each array are stored for `restore` and `verify`. Of a symbolic link, the target is
    written.

    In several processes all must save the same names, types, layouts and counters to one path,
    which they compare before anything is written. What was at `path` is replaced only by a file
    that is complete and reads back as it was written.

    Raises CheckpointError that lists all entries of a tree that a file cannot hold (numbers that
    are no ints of 64 bits, text, None, arrays of NumPy, other objects), for a tree without arrays
    and counters, for a dtype that safetensors lacks, or if the file cannot be written; what was at
    `path` before is still there then.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> _ = gdt.checkpoint.save(path, {"w": gdt.ones((2, 2)), "epoch": 3})
    >>> tree = {"w": gdt.zeros((2, 2)), "epoch": 0}
    >>> gdt.checkpoint.restore(path, tree).bytes_read, tree["w"].tolist(), tree["epoch"]
    (40, [[1.0, 1.0], [1.0, 1.0]], 3)
    """
    path = Path(path)
    values: dict[str, Any] = {}
    for slot in entries_of("save", tree):
        problem = _problem_of_name(slot.name, values)
        if problem:
            raise error(
                CheckpointError,
                "save",
                f"{slot.name!r} {problem}",
                remedy="Rename a key of the tree.",
            )
        values[slot.name] = slot.value
    values = dict(sorted(values.items()))  # processes may have filled the tree in other orders
    _agree(path, values)
    arrays = [x for x in values.values() if isinstance(x, DistributedArray)]
    _check_values(path, values)
    waiting = [x for x in arrays if any(x.layout.reductions)]
    move_to_layouts(waiting, [x.layout.resolved for x in waiting])
    target = Path(os.path.realpath(path))
    own = f".{target.name}.{os.getpid()}-{threading.get_ident()}.tmp"
    temporary = target.with_name(of_first_process(own))
    steps = _Writing(target, temporary, values)
    try:
        _in_all_processes(steps.reserve, path)
        written = _in_all_processes(steps.write_shards, path)
        _in_all_processes(partial(steps.complete, list(itertools.chain(*written))), path)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def _problem_of_name(name: str, values: Mapping[str, Any]) -> str:
    """Why a file that holds `values` cannot hold a value of this name too; empty if it can."""
    if name in values:
        return "is the name of two values"
    if name == "__metadata__":
        return "is a reserved name"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "cannot be written as UTF-8"
    return ""


def _agree(path: Path, values: Mapping[str, Any]) -> None:
    """Raise CheckpointError in all processes, before anything is written, if they save different
    names, types, layouts or counters."""
    count = processes.current().count
    facts = {
        name: f"{value.type} on {value.mesh}" if isinstance(value, DistributedArray) else str(value)
        for name, value in values.items()
    }
    first, *others = gathered(count, facts, f"checkpoint.save of {path}")
    for i, other in enumerate(others, 1):
        differing = [n for n in sorted(first | other) if first.get(n) != other.get(n)]
        if differing:
            lines = [
                f"{n}: {first.get(n, 'nothing')} in process 0, {other.get(n, 'nothing')} in {i}"
                for n in differing[:SHOWN]
            ]
            more = [f"and {len(differing) - SHOWN} more"] if len(differing) > SHOWN else []
            raise error(
                CheckpointError,
                "save",
                f"processes save different trees to {path}\n  " + "\n  ".join([*lines, *more]),
                remedy="Every process saves the same tree; nothing was written.",
            )


def _in_all_processes(step: Callable[[], T], path: Path) -> list[T]:
    """Run a step in this process, and raise in all processes if it failed in one; returns what it
    returned in each process."""
    cause, result = None, None
    try:
        result = step()
    except (OSError, CheckpointError) as failure:
        cause = failure
    told = str(cause or ""), result
    results = gathered(processes.current().count, told, f"checkpoint.save of {path}")
    for i, (text, _) in enumerate(results):
        if text:
            where = f" by process {i}" if len(results) > 1 else ""
            problem = f"{path} cannot be written{where} ({text})"
            raise error(CheckpointError, "save", problem) from cause
    return [result for _, result in results]


class _Writing:
    """The steps in which a file is written; processes take each together. Process 0 makes the file,
    every process writes the shards that it holds, and process 0 completes it."""

    def __init__(self, path: Path, temporary: Path, values: Mapping[str, Any]) -> None:
        self.path, self.temporary, self.values = path, temporary, values
        self.first = processes.current().index == 0
        # Large elements first, so that all are aligned; then by name.
        self.order = sorted(values, key=lambda name: -dtype_of(values[name]).itemsize)
        self.entries: dict[str, Any] = {}
        offset = 0
        for name in self.order:
            nbytes = nbytes_of(values[name])
            self.entries[name] = {
                "dtype": CODES[dtype_of(values[name]).name],
                "shape": list(shape_of(values[name])),
                "data_offsets": [offset, offset + nbytes],
            }
            offset += nbytes
        # The header goes last: it holds the checksums, whose length is known before.
        blank = {name: ["0" * 8 for _ in slabs(shape_of(values[name]))] for name in self.order}
        self.start = len(_header(self.entries, blank))
        self.size = self.start + offset

    def reserve(self) -> None:
        """Make the file in its full size."""
        if self.first:
            if self.path.exists() and not self.path.is_file():
                raise OSError("it is not a regular file")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.temporary.open("w+b") as file:
                _reserve(file, self.size)

    def write_shards(self) -> list[Written]:
        """Put the shards of this process in their places in the file; returns what it has
        written."""
        written: list[Written] = []
        with self.temporary.open("r+b") as file:
            for name in self.order:
                if nbytes_of(self.values[name]):
                    target = self._mapped(file, name)
                    for index, data in _pieces(self.values[name], self.first):
                        target[index or ...] = data
                        bounds = [(s.start, s.stop) for s in index]
                        written.append((name, bounds, checksum(np.asarray(data, target.dtype))))
                    target.flush()
            os.fsync(file.fileno())
        return written

    def complete(self, written: Sequence[Written]) -> None:
        """Write the header, and give the file its name once it is whole: nothing that exists is
        replaced before."""
        if self.first:
            with self.temporary.open("r+b") as file:
                self._check(file, written)
                sums = {
                    name: checksums(self._mapped(file, name))
                    if nbytes_of(self.values[name])
                    else []
                    for name in self.order
                }
                file.seek(0)
                file.write(_header(self.entries, sums))
                file.flush()
                os.fsync(file.fileno())
            if contents(self.temporary).keys() != self.entries.keys():
                raise OSError("its header reads back otherwise than it was written")
            self.temporary.replace(self.path)
            _sync_directory(self.path.parent)

    def _check(self, file: BinaryIO, written: Sequence[Written]) -> None:
        """Raise OSError unless the file holds what all processes have written, and nothing else."""
        missing = {name: math.prod(shape_of(value)) for name, value in self.values.items()}
        for name, bounds, expected in written:
            part = self._mapped(file, name)[tuple(slice(*b) for b in bounds)]
            missing[name] -= part.size
            if checksum(part) != expected:
                raise OSError(f"{name} reads back otherwise than it was written")
        incomplete = [name for name, count in missing.items() if count]
        if incomplete:
            raise OSError(f"not all of {', '.join(incomplete[:SHOWN])} has been written")

    def _mapped(self, file: BinaryIO, name: str) -> np.memmap[Any, Any]:
        value, offset = self.values[name], self.entries[name]["data_offsets"][0]
        return np.memmap(file, dtype_of(value), "r+", self.start + offset, shape_of(value) or (1,))


def _check_values(path: Path, values: Mapping[str, Any]) -> None:
    """Raise CheckpointError unless safetensors has a dtype for every value."""
    limits = np.iinfo(np.int64)
    large = [
        f"{name}: {value}"
        for name, value in values.items()
        if isinstance(value, int) and not limits.min <= value <= limits.max
    ]
    if large:
        raise error(
            CheckpointError,
            "save",
            f"counters are of 64 bits in {path}\n  " + "\n  ".join(large),
            remedy=f"They are in {limits.min}..{limits.max}.",
        )
    wrong = [
        f"{name}: {value.type}"
        for name, value in values.items()
        if isinstance(value, DistributedArray) and value.dtype.name not in CODES
    ]
    if wrong:
        raise error(
            CheckpointError,
            "save",
            f"safetensors cannot hold these in {path}\n  " + "\n  ".join(wrong),
            remedy=f"It holds {', '.join(CODES)}.",
        )


def _header(entries: Mapping[str, Any], sums: Mapping[str, list[str]]) -> bytes:
    metadata = {"format": "gdt", "crc32": json.dumps(sums)}
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _reserve(file: BinaryIO, size: int) -> None:
    """Take the space on disk now: a full disk is an error here, and not a signal in a mapping."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def _pieces(value: Any, first_process: bool) -> Iterator[tuple[Index, Any]]:
    """Every distinct shard that this process is to write: (where it lies in the global array, data
    on the host). Of replicas, the first device's is written; what all processes have, by process
    0."""
    if isinstance(value, int):
        if first_process:
            yield (), value
        return
    if value.mesh.num_processes == 1 and not first_process:
        return
    value, writers = value.resolve(), dict[tuple[Any, ...], tuple[int, ...]]()
    for coordinate in value.mesh.coordinates():
        writers.setdefault(_key(value.type.shard_slices(coordinate)), coordinate)
    for shard in value.shards:
        if writers[_key(shard.index)] == shard.coordinate:
            yield shard.index, backend_of(value.mesh).to_host(shard.data)


def _key(index: Index) -> tuple[Any, ...]:
    return tuple((s.start, s.stop) for s in index)


def _sync_directory(directory: Path) -> None:
    """Bring a rename to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
