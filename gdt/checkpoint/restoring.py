"""Reading a checkpoint: each process reads the slices that its devices hold, and verifies them."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from gdt.arguments import checked
from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.checkpoint.checksums import checksums, damaged, slabs
from gdt.checkpoint.entries import DTYPES, Index, Pieces, dtype_of, entries_of, shape_of
from gdt.comm.messages import gathered
from gdt.errors import CheckpointError, error
from gdt.sharding import processes
from gdt.sharding.array_type import ArrayType
from gdt.state import Facts, Slot, Tree, mismatches


class Restored(NamedTuple):
    """What `restore` did: the file, how many arrays it put in place, and the bytes it read for
    them."""

    path: Path
    arrays: int
    bytes_read: int


@checked
def restore(path: str | os.PathLike[str], into: Tree, *, partial: bool = False) -> Restored:
    """Put the arrays of a checkpoint in the place of those of a tree, in the layouts these have.

    into: a tree as for `save`, on any mesh. From each array only the slices that this process's
    devices hold are read, each once. partial: whether the file may hold more than the tree.

    What is read is compared with the file's checksums: in one process every byte, in one of several
    every slab of rows (an array has up to 64) that it reads whole. `verify` reads the rest too.

    Raises CheckpointError that names the file if it is missing, truncated or no safetensors file,
    one that lists every name, shape and dtype that differs, and one that names the arrays whose
    bytes have changed; nothing is changed then.
    """
    path, places = Path(path), entries_of("restore", into)
    new: list[Any] = []
    total, failure = 0, None
    try:
        with _opened(path, "restore") as file:
            _check_facts(path, places, file, partial)
            sums, wrong = _checksums_of(file), []
            for slot in places:
                value, pieces = _read(file, slot.name, slot.value)
                new.append(value)
                total += sum(piece.nbytes for piece in pieces.values())
                if slot.name in sums and damaged(sums[slot.name], shape_of(slot.value), pieces):
                    wrong.append(slot.name)
            if wrong:
                raise _damage(path, "restore", wrong)
    except CheckpointError as found:
        failure = found
    _raise_together(failure, path)
    for slot, value in zip(places, new, strict=True):
        slot.owner[slot.key] = value
    return Restored(path, len(new), total)


def _raise_together(failure: CheckpointError | None, path: Path) -> None:
    """Raise what this process failed with; or, if only others did, that they did."""
    problems = gathered(
        processes.current().count, str(failure or ""), f"checkpoint.restore of {path}"
    )
    if failure is not None:
        raise failure
    for i, problem in enumerate(problems):
        if problem:
            what = f"process {i} cannot restore {path}, so no process does"
            raise error(CheckpointError, "restore", f"{what}\n  {problem}")


@contextlib.contextmanager
def _opened(path: Path, op: str) -> Iterator[Any]:
    if path.is_dir():
        files = sorted(path.glob("*.safetensors"))
        hint = f"It holds {files[-1].name}, for one." if files else "It holds no checkpoint either."
        raise error(CheckpointError, op, f"{path} is a directory, not a file", remedy=hint)
    if path.exists() and not path.is_file():
        raise error(CheckpointError, op, f"{path} is not a regular file")
    if not path.exists():
        raise error(CheckpointError, op, f"there is no file {path}")
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except (SafetensorError, OSError) as cause:
        raise error(
            CheckpointError,
            op,
            f"{path} is damaged or no safetensors file ({cause})",
            remedy="Restore an older checkpoint.",
        ) from cause


@checked
def contents(path: str | os.PathLike[str]) -> dict[str, Facts]:
    """Shape and dtype of every array in a checkpoint, by name."""
    with _opened(Path(path), "contents") as file:
        return {name: _facts(file, name) for name in file.keys()}  # noqa: SIM118


def _facts(file: Any, name: str) -> Facts:
    found = file.get_slice(name)
    code = found.get_dtype()
    return tuple(found.get_shape()), DTYPES.get(code, code)


def _check_facts(path: Path, places: Sequence[Slot], file: Any, partial: bool) -> None:
    wanted = {s.name: (shape_of(s.value), dtype_of(s.value).name) for s in places}
    given = {name: _facts(file, name) for name in file.keys() if not partial or name in wanted}  # noqa: SIM118
    wrong = mismatches(wanted, given)
    if wrong:
        raise error(
            CheckpointError,
            "restore",
            f"{path} does not fit\n  " + "\n  ".join(wrong),
            remedy="Restore into a model of the same shapes, an optimizer after its init(model); "
            "partial=True leaves arrays out.",
        )


def _checksums_of(file: Any) -> dict[str, list[str]]:
    """The checksums in a file's metadata, by array; empty for files of other programs.

    Raises OSError if they are not those of the arrays that there are.
    """
    metadata = file.metadata() or {}
    if "crc32" not in metadata and metadata.get("format") != "gdt":
        return {}
    try:
        sums: Any = json.loads(metadata["crc32"])
        wanted = {n: sum(1 for _ in slabs(_facts(file, n)[0])) for n in file.keys()}  # noqa: SIM118
        if {name: len(listed) for name, listed in sums.items()} == wanted:
            return sums  # type: ignore[no-any-return]
    except (KeyError, ValueError, TypeError, AttributeError):
        pass
    raise OSError("its checksums are not those of its arrays")


def _damage(path: Path, op: str, names: Sequence[str]) -> CheckpointError:
    problem = f"{path} is damaged: bytes have changed in {', '.join(names)}"
    return error(CheckpointError, op, problem, remedy="Restore an older checkpoint.")


def _read(file: Any, name: str, like: Any) -> tuple[Any, Pieces]:
    """What is to stand in the place of `like`, and the pieces of the file that it is made of."""
    if isinstance(like, int):
        number = np.asarray(file.get_tensor(name))
        return int(number), {(): number}
    array_type = like.type.with_layout(like.layout.resolved)
    read: Pieces = {}
    blocks = []
    for i, at in enumerate(array_type.mesh.blocks):
        with backend_of(array_type.mesh).on(array_type.mesh, i):
            blocks.append(_read_block(file, name, array_type, at, read))
    return DistributedArray(array_type, tuple(blocks)), read


def _read_block(
    file: Any,
    name: str,
    array_type: ArrayType,
    at: tuple[int, ...],
    read: Pieces,
) -> Any:
    """The block at grid coordinate `at`, from slices of the file; `read` holds those read
    before."""
    mesh, backend = array_type.mesh, backend_of(array_type.mesh)
    block = backend.empty(array_type.block_shape, array_type.dtype, array_type.memory_order)
    mesh_ndim = block.shape[: mesh.ndim]
    for inside in np.ndindex(*mesh_ndim):
        coordinate = tuple(g * b + i for g, b, i in zip(at, mesh.box, inside, strict=True))
        index = array_type.shard_slices(coordinate)
        key = tuple((s.start, s.stop) for s in index)
        if key not in read:
            read[key] = _slice(file, name, array_type, index)
        block[inside] = backend.asarray(_padded(read[key], array_type.local_shape))
    return block


def _slice(file: Any, name: str, array_type: ArrayType, index: Index) -> np.ndarray:
    shape = tuple(s.stop - s.start for s in index)
    if not math.prod(shape):
        return np.empty(shape, array_type.dtype)
    return np.asarray(file.get_slice(name)[index] if index else file.get_tensor(name))


def _padded(piece: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """A shard with its padding, which repeats the last elements; 1 if it has none."""
    if piece.shape == shape:
        return piece
    if not piece.size:
        return np.ones(shape, piece.dtype)
    return np.pad(piece, [(0, n - m) for n, m in zip(shape, piece.shape, strict=True)], mode="edge")


@checked
def verify(path: str | os.PathLike[str]) -> None:
    """Read a whole checkpoint and compare its checksums; CheckpointError names a damaged file and
    the arrays in which bytes have changed. Files of other programs have no checksums and pass if
    readable.
    """
    path = Path(path)
    with _opened(path, "verify") as file:
        sums = _checksums_of(file)
        wrong = [
            name
            for name, expected in sums.items()
            if checksums(np.asarray(file.get_tensor(name))) != expected
        ]
    if wrong:
        raise _damage(path, "verify", wrong)
