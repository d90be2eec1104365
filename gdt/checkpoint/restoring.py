"""Read a checkpoint: each process reads the slices of its devices, and verifies them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from safetensors import SafetensorError, safe_open

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.checkpoint.checksums import checksum, checksums, damaged, slabs
from gdt.checkpoint.entries import DTYPES, Index, Pieces, dtype_of, entries_of, shape_of
from gdt.comm.notes import decided_with_lines
from gdt.errors import CheckpointError, error
from gdt.sharding import processes
from gdt.sharding.array_type import ArrayType
from gdt.state import Facts, Slot, mismatches
from gdt.state.trees import Tree

T = TypeVar("T")


class Restored(NamedTuple):
    """The result of `restore`.

    path: the file. arrays: the number of restored arrays and counters. bytes_read: the bytes that
    this process read for them.

    >>> import tempfile
    >>> tree = {"w": gdt.ones(2)}
    >>> path = gdt.checkpoint.save(tempfile.mkdtemp() + "/w.safetensors", tree)
    >>> gdt.checkpoint.restore(path, tree).arrays
    1
    """

    path: Path
    arrays: int
    bytes_read: int


@checked
def restore(path: str | os.PathLike[str], into: Tree, *, partial: bool = False) -> Restored:
    """Replace the arrays of a tree by those of a checkpoint, in the layouts of the tree's arrays.

    into: a tree as for `save`, on any mesh. partial: whether the file may hold more than the tree.

    A process reads each slice that its devices hold once, and nothing else. It compares them with
    the file's checksums: a single process every byte, one of several every slab of rows (an array
    has up to 64) that it reads whole. `verify` reads and compares everything.

    Raises CheckpointError that names the file if it is missing, truncated or no safetensors file,
    one that lists every name, shape and dtype that differs, and one that names the arrays whose
    bytes have changed. Several processes must read one file, or copies of it; an error in one is
    an error in all. Then nothing is changed.

    >>> import tempfile
    >>> path = gdt.checkpoint.save(tempfile.mkdtemp() + "/w.safetensors", {"w": gdt.ones((4,))})
    >>> mesh = gdt.create_mesh([("x", 2)])
    >>> tree = {"w": gdt.zeros((4,), layout=gdt.Layout(["x"], mesh))}
    >>> gdt.checkpoint.restore(path, tree).arrays, tree["w"].tolist(), str(tree["w"].layout)
    (1, [1.0, 1.0, 1.0, 1.0], "['x']")
    """
    path = Path(path)
    # Processes may have filled the tree in other orders.
    places = sorted(entries_of(into), key=lambda slot: slot.name)
    new, total = read_alike("restore", path, lambda: _read_all(path, places, partial))
    for slot, value in zip(places, new, strict=True):
        slot.owner[slot.key] = value
    return Restored(path, len(new), total)


def _read_all(
    path: Path, places: Sequence[Slot], partial: bool
) -> tuple[tuple[list[Any], int], int]:
    """Return the values that replace those of `places`, the bytes read for them, and a checksum of
    the file: of the checksums in it, or else of what every process reads."""
    new: list[Any] = []
    total = 0
    with _opened(path) as file:
        _check_facts(path, places, file, partial)
        sums, wrong = _checksums_of(file), []
        content = zlib.crc32(json.dumps(sums).encode())
        for slot in places:
            value, pieces = _read(file, slot.name, slot.value)
            new.append(value)
            total += sum(piece.nbytes for piece in pieces.values())
            if slot.name not in sums:
                content = zlib.crc32(_checksum_of_whole(slot.value, pieces), content)
            elif damaged(sums[slot.name], shape_of(slot.value), pieces):
                wrong.append(slot.name)
        if wrong:
            raise _damage(path, wrong)
    return (new, total), content


def _checksum_of_whole(value: Any, pieces: Pieces) -> bytes:
    """Return the checksum of the piece that each of several processes has read for an array that is
    not split, or for a counter; nothing for other arrays."""
    if processes.current().count == 1 or (not isinstance(value, int) and any(value.layout.dims)):
        return b""
    return "".join(map(checksum, pieces.values())).encode()


def read_alike(op: str, path: Path, read: Callable[[], tuple[T, object]]) -> T:
    """Return what `read` returns beside a checksum of the file that it reads.

    Raises CheckpointError in all processes if `read` raises one in any of them, or if the processes
    have read files of different checksums.
    """
    outcome: tuple[T, object] | CheckpointError
    try:
        outcome = read()
        own = ("", outcome[1])
    except CheckpointError as failure:
        outcome, own = failure, (str(failure), None)

    def first_other(told: list[Any], sides: list[tuple[str, str]]) -> Any:
        failed = [i for i, (text, _) in enumerate(told) if text]
        others = failed or [i for i, found in enumerate(told) if found != told[0]]
        i = others[0] if others else 0
        return (i, told[i][0], [sides[0], sides[i]]) if others else None

    found = decided_with_lines(processes.current().count, own, first_other, f"{op} of {path}")
    if isinstance(outcome, CheckpointError):
        raise outcome
    if found is None:
        return outcome[0]
    i, failure_text, sides = found
    if failure_text:
        problem = f"process {i} cannot read {path}, so no process does\n  {failure_text}"
        raise error(CheckpointError, op, problem, operands=dict(sides[1:]))
    raise error(
        CheckpointError,
        op,
        f"processes 0 and {i} read different files at {path}",
        operands=dict(sides),
        remedy="Give every process a copy of one file, or a path that all share.",
    )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Open a safetensors file, or raise CheckpointError."""
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        hint = f"It holds {files[-1].name}, for one." if files else "It holds no checkpoint either."
        raise error(CheckpointError, f"{path} is a directory, not a file", remedy=hint)
    if path.exists() and not path.is_file():
        raise error(CheckpointError, f"{path} is not a regular file")
    if not path.exists():
        raise error(CheckpointError, f"there is no file {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as cause:
        raise error(
            CheckpointError,
            f"{path} is damaged or no safetensors file ({cause})",
            remedy="Restore an older checkpoint.",
        ) from cause


@checked
def contents(path: str | os.PathLike[str]) -> dict[str, Facts]:
    """Return the shape and the name of the dtype of every array in a checkpoint, by name.

    Raises CheckpointError if the file is missing, damaged or no safetensors file.

    >>> import tempfile
    >>> path = gdt.checkpoint.save(tempfile.mkdtemp() + "/w.safetensors", {"w": gdt.ones((4,))})
    >>> gdt.checkpoint.contents(path)
    {'w': ((4,), 'float64')}
    """
    with _opened(Path(path)) as file:
        return {name: _facts(file, name) for name in file.keys()}  # noqa: SIM118


def _facts(file: Any, name: str) -> Facts:
    """Return the shape and the name of the dtype of an array in a file."""
    header = file.get_slice(name)
    code = header.get_dtype()
    return tuple(header.get_shape()), DTYPES.get(code, code)


def _check_facts(path: Path, places: Sequence[Slot], file: Any, partial: bool) -> None:
    """Raise CheckpointError unless the file's names, shapes and dtypes are those of `places`."""
    targets = {s.name: (shape_of(s.value), dtype_of(s.value).name) for s in places}
    entries = {name: _facts(file, name) for name in file.keys() if not partial or name in targets}  # noqa: SIM118
    wrong = mismatches(targets, entries)
    if wrong:
        raise error(
            CheckpointError,
            f"{path} does not fit\n  " + "\n  ".join(wrong),
            remedy="Restore into a model of the same shapes, an optimizer after its init(model); "
            "partial=True leaves arrays out.",
        )


def _checksums_of(file: Any) -> dict[str, list[str]]:
    """Return the checksums in a file's metadata, by array; none for files of other programs.

    Raises OSError if they do not fit the file's arrays.
    """
    metadata = file.metadata() or {}
    if "crc32" not in metadata and metadata.get("format") != "gdt":
        return {}
    try:
        sums: Any = json.loads(metadata["crc32"])
        counts = {n: sum(1 for _ in slabs(_facts(file, n)[0])) for n in file.keys()}  # noqa: SIM118
        if {name: len(listed) for name, listed in sums.items()} == counts:
            return sums  # type: ignore[no-any-return]
    except (KeyError, ValueError, TypeError, AttributeError):
        pass
    raise OSError("its checksums are not those of its arrays")


def _damage(path: Path, names: Sequence[str]) -> CheckpointError:
    problem = f"{path} is damaged: bytes have changed in {', '.join(names)}"
    return error(CheckpointError, problem, remedy="Restore an older checkpoint.")


def _read(file: Any, name: str, like: Any) -> tuple[Any, Pieces]:
    """Return the value that replaces `like`, and the pieces of the file that it consists of."""
    if isinstance(like, int):
        number = np.asarray(file.get_tensor(name))
        return int(number), {(): number}
    array_type = like.type.with_layout(like.layout.resolved)
    pieces: Pieces = {}
    blocks = []
    for i, at in enumerate(array_type.mesh.blocks):
        with backend_of(array_type.mesh).on(array_type.mesh, i):
            blocks.append(_read_block(file, name, array_type, at, pieces))
    return DistributedArray(array_type, tuple(blocks)), pieces


def _read_block(
    file: Any,
    name: str,
    array_type: ArrayType,
    at: tuple[int, ...],
    pieces: Pieces,
) -> Any:
    """Return the block at grid coordinate `at`, from slices of the file.

    pieces: the slices that were read before; the missing ones are added.
    """
    mesh, backend = array_type.mesh, backend_of(array_type.mesh)
    block = backend.empty(array_type.block_shape, array_type.dtype, array_type.memory_order)
    mesh_ndim = block.shape[: mesh.ndim]
    for inside in np.ndindex(*mesh_ndim):
        coordinate = tuple(g * b + i for g, b, i in zip(at, mesh.box, inside, strict=True))
        index = array_type.shard_slices(coordinate)
        key = tuple((s.start, s.stop) for s in index)
        if key not in pieces:
            pieces[key] = _slice(file, name, array_type, index)
        block[inside] = backend.asarray(_padded(pieces[key], array_type.local_shape))
    return block


def _slice(file: Any, name: str, array_type: ArrayType, index: Index) -> np.ndarray:
    shape = tuple(s.stop - s.start for s in index)
    if not math.prod(shape):
        return np.empty(shape, array_type.dtype)
    return np.asarray(file.get_slice(name)[index] if index else file.get_tensor(name))


def _padded(piece: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return a shard with its padding, which repeats the last element; 1 in an empty shard."""
    if piece.shape == shape:
        return piece
    if not piece.size:
        return np.ones(shape, piece.dtype)
    return np.pad(piece, [(0, n - m) for n, m in zip(shape, piece.shape, strict=True)], mode="edge")


@checked
def verify(path: str | os.PathLike[str]) -> None:
    """Read a whole checkpoint, and compare it with its checksums.

    Raises CheckpointError that names a damaged file and the arrays whose bytes have changed. A file
    of another program, which has no checksums, passes if it is readable.

    >>> import tempfile
    >>> path = gdt.checkpoint.save(tempfile.mkdtemp() + "/w.safetensors", {"w": gdt.ones((4,))})
    >>> gdt.checkpoint.verify(path)
    """
    path = Path(path)
    with _opened(path) as file:
        sums = _checksums_of(file)
        wrong = [
            name
            for name, expected in sums.items()
            if checksums(np.asarray(file.get_tensor(name))) != expected
        ]
    if wrong:
        raise _damage(path, wrong)
