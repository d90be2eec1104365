"""Write a checkpoint: every process writes the shards of its devices to their places."""

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
from gdt.array.array import DistributedArray
from gdt.array.fetching import distinct_shards
from gdt.array.moving import move_to_layouts
from gdt.checkpoint.checksums import checksum, checksums, slabs
from gdt.checkpoint.entries import (
    CODES,
    Index,
    dtype_of,
    entries_of,
    nbytes_of,
    of_first_process,
    shape_of,
    unlike,
)
from gdt.checkpoint.restoring import contents
from gdt.comm.agreement import origin_of
from gdt.comm.notes import decided
from gdt.errors import CheckpointError, error
from gdt.sharding import processes
from gdt.state.trees import Tree

SHARED = "All processes write to one file, so all must see its folder: a shared file system."
SHOWN = 10  # lines of an error that lists entries
NOTHING = "nothing", 0
T = TypeVar("T")
# A part that a process has written: the name of its array, its bounds, and its checksum.
Part = tuple[str, list[tuple[int, int]], str]


@checked
def save(path: str | os.PathLike[str], tree: Tree) -> Path:
    """Write all arrays and counters of a tree to one safetensors file, and return its path.

    tree: a Module, an Optimizer, or nested dicts and lists of them, of arrays and of ints; names
        are joined with dots, as in `model.dense1.weight`.
    path: the file to write; if it is a symbolic link, the target is written.

    Every shard is written to its place in the file once, so no whole array is assembled in memory.
    The file also stores checksums (CRC-32) of up to 64 slabs of rows of each array, for `restore`
    and `verify`. A file at `path` is replaced only when the new file is complete and reads back as
    it was written. Several processes must save the same names, types, layouts and counters to one
    path; they compare them before anything is written.

    Raises CheckpointError for entries that a file cannot hold (numbers that are no ints of 64 bits,
    text, None, arrays of NumPy, other objects), all of which it lists; for a tree without arrays
    and counters; for a dtype that safetensors lacks; and if the file cannot be written. After an
    error an existing file at `path` is unchanged.

    >>> import tempfile
    >>> path = tempfile.mkdtemp() + "/weights.safetensors"
    >>> _ = gdt.checkpoint.save(path, {"w": gdt.ones((2, 2)), "epoch": 3})
    >>> tree = {"w": gdt.zeros((2, 2)), "epoch": 0}
    >>> gdt.checkpoint.restore(path, tree).bytes_read, tree["w"].tolist(), tree["epoch"]
    (40, [[1.0, 1.0], [1.0, 1.0]], 3)
    """
    path = Path(path)
    values: dict[str, Any] = {}
    for slot in entries_of(tree):
        problem = _problem_of_name(slot.name, values)
        if problem:
            raise error(
                CheckpointError,
                f"{slot.name!r} {problem}",
                remedy="Rename a key of the tree.",
            )
        values[slot.name] = slot.value
    values = dict(sorted(values.items()))  # processes may have filled the tree in other orders
    _agree(path, values)
    arrays = [x for x in values.values() if isinstance(x, DistributedArray)]
    _check_values(path, values)
    partial_arrays = [x for x in arrays if any(x.layout.reductions)]
    move_to_layouts(partial_arrays, [x.layout.resolved for x in partial_arrays])
    # The folder that a relative path begins in may be gone.
    target = in_all_processes(lambda: Path(os.path.realpath(path)), path)[0]
    temporary = target.with_name(of_first_process(_temporary_name(target)))
    writer = _Writer(target, temporary, values)
    try:
        in_all_processes(writer.reserve, path)
        parts = in_all_processes(writer.write_shards, path)
        in_all_processes(partial(writer.complete, list(itertools.chain(*parts))), path)
    finally:
        # Of another process that dies, process 0 may learn later than this one, and may still be
        # completing the file.
        if writer.first:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
    return path


def _problem_of_name(name: str, values: Mapping[str, Any]) -> str:
    """Return why a file with `values` cannot have an entry `name` as well; "" if it can."""
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
    """Raise CheckpointError in all processes if they save different names, types, layouts or
    counters."""
    facts = {name: _fact(value) for name, value in values.items()}
    found = unlike(facts, f"checkpoint.save of {path}")
    if found is None:
        return
    i, first, other, sides = found
    names = [n for n in sorted(first | other) if first.get(n) != other.get(n)]
    lines = [
        f"{n}: {_difference(first.get(n, NOTHING), other.get(n, NOTHING), i)}"
        for n in names[:SHOWN]
    ]
    more = [f"and {len(names) - SHOWN} more"] if len(names) > SHOWN else []
    raise error(
        CheckpointError,
        f"processes save different trees to {path}\n  " + "\n  ".join([*lines, *more]),
        operands=dict(sides),
        remedy="Every process saves the same tree; nothing was written.",
    )


def _fact(value: Any) -> tuple[str, int]:
    """Return what processes compare of a value: a text, and the checksum of an array's origin."""
    if not isinstance(value, DistributedArray):
        return str(value), 0
    return f"{value.type} on {value.mesh}", origin_of(value).checksum


def _difference(first: tuple[str, int], other: tuple[str, int], i: int) -> str:
    """Return what differs between the facts of a value in process 0 and in process `i`."""
    if first[0] == other[0]:
        return f"{first[0]}, another array in process {i} than in 0"
    return f"{first[0]} in process 0, {other[0]} in {i}"


def in_all_processes(step: Callable[[], T], path: Path) -> list[T]:
    """Run `step` in every process; return its own result, and in process 0 those of all others.

    Raises CheckpointError in all processes if the step failed in one."""
    cause, result = None, None
    try:
        result = step()
    except (OSError, CheckpointError) as failure:
        cause = failure
    count, results = processes.current().count, [result]

    def first_failure(told: list[Any]) -> tuple[int, str] | None:
        results[:] = [result for _, result in told]
        return next(((i, text) for i, (text, _) in enumerate(told) if text), None)

    own = str(cause or ""), result
    failed = decided(count, own, first_failure, f"checkpoint.save of {path}")
    if failed is not None:
        where = f" by process {failed[0]}" if count > 1 else ""
        problem = f"{path} cannot be written{where} ({failed[1]})"
        remedy = SHARED if count > 1 else None
        raise error(CheckpointError, problem, remedy=remedy) from cause
    return results  # type: ignore[return-value]


class _Writer:
    """The steps of writing a file, which all processes take together: process 0 creates the file,
    every process writes the shards of its devices, and process 0 completes the file."""

    def __init__(self, path: Path, temporary: Path, values: Mapping[str, Any]) -> None:
        self.path, self.temporary, self.values = path, temporary, values
        self.first = processes.current().index == 0
        # Arrays of large elements come first, so that all are aligned; equal sizes stay by name.
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
        # The header is written last, since it holds the checksums; their length is known now.
        blank = {name: ["0" * 8 for _ in slabs(shape_of(values[name]))] for name in self.order}
        self.start = len(_header(self.entries, blank))
        self.size = self.start + offset

    def reserve(self) -> None:
        """Create the temporary file at its full size."""
        if self.first:
            if self.path.exists() and not self.path.is_file():
                raise OSError("it is not a regular file")
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.temporary.open("w+b") as file:
                _reserve(file, self.size)

    def write_shards(self) -> list[Part]:
        """Write the shards of this process to their places in the file; list the parts written."""
        parts: list[Part] = []
        with self.temporary.open("r+b") as file:
            for name in self.order:
                if nbytes_of(self.values[name]):
                    target = self._mapped(file, name)
                    for index, data in _pieces(self.values[name], self.first):
                        target[index or ...] = data
                        bounds = [(s.start, s.stop) for s in index]
                        parts.append((name, bounds, checksum(np.asarray(data, target.dtype))))
                    target.flush()
            os.fsync(file.fileno())
        return parts

    def complete(self, parts: Sequence[Part]) -> None:
        """Write the header and rename the temporary file; only this replaces an existing file."""
        if self.first:
            with self.temporary.open("r+b") as file:
                self._check(file, parts)
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
            _put_in_place(self.temporary, self.path)

    def _check(self, file: BinaryIO, parts: Sequence[Part]) -> None:
        """Raise OSError unless the file consists of the parts that all processes have written."""
        missing = {name: math.prod(shape_of(value)) for name, value in self.values.items()}
        for name, of_array in itertools.groupby(sorted(parts), lambda part: part[0]):
            whole = self._mapped(file, name)
            for _, bounds, expected in of_array:
                part = whole[tuple(slice(*b) for b in bounds)]
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
            f"safetensors cannot hold these in {path}\n  " + "\n  ".join(wrong),
            remedy=f"It holds {', '.join(CODES)}.",
        )


def _header(entries: Mapping[str, Any], sums: Mapping[str, list[str]]) -> bytes:
    metadata = {"format": "gdt", "crc32": json.dumps(sums)}
    text = json.dumps({"__metadata__": metadata, **entries}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _reserve(file: BinaryIO, size: int) -> None:
    """Allocate the space on disk, so that a full disk is an error, not a signal in a mapping."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def _pieces(value: Any, first_process: bool) -> Iterator[tuple[Index, Any]]:
    """Yield every distinct shard that this process writes: (index in the global array, data on the
    host).

    Of several replicas the first device's is written. Process 0 writes counters, and arrays that
    every process has.
    """
    if isinstance(value, int):
        if first_process:
            yield (), value
        return
    if value.mesh.num_processes == 1 and not first_process:
        return
    yield from distinct_shards(value.resolve())


def write_whole(path: Path, data: bytes) -> None:
    """Replace a file by one of these bytes, which is whole on disk before it has the name."""
    temporary = path.with_name(_temporary_name(path))
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        _put_in_place(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def _temporary_name(path: Path) -> str:
    """Return a name, of this thread alone, for a file that is to be renamed to `path`."""
    return f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp"


def _put_in_place(temporary: Path, path: Path) -> None:
    """Rename a file that is on disk, and bring the new name to disk."""
    temporary.replace(path)
    descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
