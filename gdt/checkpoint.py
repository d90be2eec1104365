"""Checkpoints: the arrays of a model in one safetensors file, restored onto any mesh and layout.

The file holds global arrays, so meshes and layouts leave no trace in it, and `safetensors` alone
can read it. A file appears whole or not at all: it is written under a temporary name, brought to
disk, and renamed.
"""

from __future__ import annotations

import contextlib
import glob
import json
import math
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open

from gdt import processes
from gdt.arguments import checked, checked_class, shown_value
from gdt.array import DistributedArray
from gdt.backend import backend_of
from gdt.checksums import Bounds, checksums, damaged, slabs
from gdt.comm.messages import gathered
from gdt.errors import ArgumentError, CheckpointError, error
from gdt.layout import ArrayType
from gdt.ops.movement import relayout_together
from gdt.slots import Facts, Slot, Tree, mismatches, slots

CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32",
    "int32": "I32", "uint64": "U64", "int64": "I64", "float16": "F16", "float32": "F32",
    "float64": "F64", "complex64": "C64",
}  # fmt: skip
DTYPES = {code: name for name, code in CODES.items()}

Index = tuple[slice, ...]
Pieces = dict[Bounds, np.ndarray]  # parts of an array of a file, by their bounds


class Restored(NamedTuple):
    """What `restore` did: the file, how many arrays it put in place, and the bytes it read for
    them."""

    path: Path
    arrays: int
    bytes_read: int


# ---------------------------------------------------------------- saving


@checked
def save(path: str | os.PathLike[str], tree: Tree) -> Path:
    """Write all arrays and counters of a tree to one safetensors file, and return its path.

    tree: a Module, an Optimizer, or nested dicts and lists of them, of arrays and of ints; names
    are joined with dots, as in `model.dense1.weight`. Every shard is written to its place in the
    file once, so no whole array is put together in memory. Checksums (CRC-32) of up to 64 slabs of
    rows of each array are stored for `restore` and `verify`. Of a symbolic link, the target is
    written.

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
    for slot in _places("save", tree):
        if slot.name in values or slot.name == "__metadata__":
            problem = "is the name of two values" if slot.name in values else "is a reserved name"
            raise error(
                CheckpointError,
                "save",
                f"{slot.name!r} {problem}",
                remedy="Rename a key of the tree.",
            )
        values[slot.name] = slot.value
    arrays = [x for x in values.values() if isinstance(x, DistributedArray)]
    _check_values(path, values)
    waiting = [x for x in arrays if any(x.layout.pending)]
    relayout_together(waiting, [x.layout.resolved for x in waiting])
    target = Path(os.path.realpath(path))
    own = f".{target.name}.{os.getpid()}-{threading.get_ident()}.tmp"
    temporary = target.with_name(_of_first_process(own))
    steps = _Writing(target, temporary, values)
    try:
        for step in (steps.reserve, steps.write_shards, steps.complete):
            _in_all_processes(step, path, "save", "cannot be written")
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return path


def _places(op: str, tree: Tree) -> list[Slot]:
    """The slots of a tree; CheckpointError that lists all else, or if there is none."""
    others: list[str] = []
    places = list(slots(tree, lambda name, value: others.append(_described(name, value))))
    remedy = "A tree holds Modules, Optimizers, arrays and ints in dicts and lists"
    if others:
        raise error(
            CheckpointError,
            op,
            "a checkpoint cannot hold\n  " + "\n  ".join(others),
            remedy=f"{remedy}: use gdt.asarray or int, and leave out what is no state.",
        )
    if not places:
        problem = f"{_described('', tree)} holds no array and no counter"
        raise error(CheckpointError, op, problem, remedy=f"{remedy}.")
    return places


def _described(name: str, value: Any) -> str:
    """`model.rate: 0.5`, `state: a TrainState`"""
    if isinstance(value, np.ndarray):
        shown = f"a NumPy array, {value.dtype}{list(value.shape)}"
    else:
        shown = shown_value(value)
    if not name:
        return shown
    return f"{name}: {shown} in a tuple" if type(value) is int else f"{name}: {shown}"


def _of_first_process(value: Any) -> Any:
    """The value that process 0 has."""
    return gathered(processes.current().count, value, "checkpoint")[0]


def _in_all_processes(step: Callable[[], None], path: Path, op: str, problem: str) -> None:
    """Run a step in this process, and raise in all processes if it failed in one."""
    cause: OSError | None = None
    try:
        step()
    except OSError as found:
        cause = found
    causes = gathered(processes.current().count, str(cause or ""), f"checkpoint.{op} of {path}")
    for i, text in enumerate(causes):
        if text:
            where = f" by process {i}" if len(causes) > 1 else ""
            raise error(CheckpointError, op, f"{path} {problem}{where} ({text})") from cause


class _Writing:
    """The steps in which a file is written; processes take each together. Process 0 makes the file,
    every process writes the shards that it holds, and process 0 completes it."""

    def __init__(self, path: Path, temporary: Path, values: Mapping[str, Any]) -> None:
        self.path, self.temporary, self.values = path, temporary, values
        self.first = processes.current().index == 0
        # Large elements first, so that all are aligned.
        self.order = sorted(values, key=lambda name: -_dtype(values[name]).itemsize)
        self.entries: dict[str, Any] = {}
        offset = 0
        for name in self.order:
            nbytes = _nbytes(values[name])
            self.entries[name] = {
                "dtype": CODES[_dtype(values[name]).name],
                "shape": list(_shape(values[name])),
                "data_offsets": [offset, offset + nbytes],
            }
            offset += nbytes
        # The header goes last: it holds the checksums, whose length is known before.
        blank = {name: ["0" * 8 for _ in slabs(_shape(values[name]))] for name in self.order}
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

    def write_shards(self) -> None:
        """Put the shards of this process in their places in the file."""
        with self.temporary.open("r+b") as file:
            for name in self.order:
                if _nbytes(self.values[name]):
                    target = self._mapped(file, name)
                    for index, data in _pieces(self.values[name], self.first):
                        target[index or ...] = data
                    target.flush()
            os.fsync(file.fileno())

    def complete(self) -> None:
        """Write the header, and give the file its name."""
        if self.first:
            with self.temporary.open("r+b") as file:
                sums = {
                    name: checksums(self._mapped(file, name)) if _nbytes(self.values[name]) else []
                    for name in self.order
                }
                file.seek(0)
                file.write(_header(self.entries, sums))
                file.flush()
                os.fsync(file.fileno())
            self.temporary.replace(self.path)
            _sync_directory(self.path.parent)

    def _mapped(self, file: BinaryIO, name: str) -> np.memmap[Any, Any]:
        value, offset = self.values[name], self.entries[name]["data_offsets"][0]
        return np.memmap(file, _dtype(value), "r+", self.start + offset, _shape(value) or (1,))


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


def _shape(value: Any) -> tuple[int, ...]:
    return () if isinstance(value, int) else value.shape


def _dtype(value: Any) -> np.dtype:
    return np.dtype("<i8") if isinstance(value, int) else value.dtype.newbyteorder("<")


def _nbytes(value: Any) -> int:
    return math.prod(_shape(value)) * _dtype(value).itemsize


def _sync_directory(directory: Path) -> None:
    """Bring a rename to disk."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ---------------------------------------------------------------- restoring


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
    path, places = Path(path), _places("restore", into)
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
                if slot.name in sums and damaged(sums[slot.name], _shape(slot.value), pieces):
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
    problems = gathered(processes.current().count, str(failure or ""), "checkpoint.restore")
    if failure is not None:
        raise failure
    for i, problem in enumerate(problems):
        if problem:
            what = f"process {i} cannot restore {path}, so no process does"
            raise error(CheckpointError, "restore", f"{what}\n  {problem}")


@contextlib.contextmanager
def _opened(path: Path, op: str) -> Iterator[Any]:
    if not path.is_file():
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
    wanted = {s.name: (_shape(s.value), _dtype(s.value).name) for s in places}
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
    kind = like.type.with_layout(like.layout.resolved)
    read: Pieces = {}
    blocks = []
    for i, at in enumerate(kind.mesh.blocks):
        with backend_of(kind.mesh).on(kind.mesh, i):
            blocks.append(_read_block(file, name, kind, at, read))
    return DistributedArray(kind, tuple(blocks)), read


def _read_block(
    file: Any,
    name: str,
    kind: ArrayType,
    at: tuple[int, ...],
    read: Pieces,
) -> Any:
    """The block at grid coordinate `at`, from slices of the file; `read` holds those read
    before."""
    mesh, backend = kind.mesh, backend_of(kind.mesh)
    block = backend.empty(kind.block_shape, kind.dtype)
    lead = block.shape[: mesh.ndim]
    for inside in np.ndindex(*lead):
        coordinate = tuple(g * b + i for g, b, i in zip(at, mesh.box, inside, strict=True))
        index = kind.shard_slices(coordinate)
        key = tuple((s.start, s.stop) for s in index)
        if key not in read:
            read[key] = _slice(file, name, kind, index)
        block[inside] = backend.asarray(_padded(read[key], kind.local_shape))
    return block


def _slice(file: Any, name: str, kind: ArrayType, index: Index) -> np.ndarray:
    shape = tuple(s.stop - s.start for s in index)
    if not math.prod(shape):
        return np.empty(shape, kind.dtype)
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


# ---------------------------------------------------------------- several checkpoints


def _is_running(writer: str) -> bool:
    """Whether the process that writes a temporary file, named `process-thread`, is alive."""
    try:
        os.kill(int(writer.split("-", maxsplit=1)[0]), 0)
    except (ProcessLookupError, ValueError):
        return False
    except PermissionError:  # somebody else's, and alive
        return True
    return True


@checked_class(eager=True)
class CheckpointManager:
    """Numbered checkpoints of one tree in a directory, of which the newest are kept.

    tree: as for `save`; what it holds at the time of each call is saved or replaced.
    max_to_keep: how many files stay; None keeps all. Follows `tf.train.CheckpointManager`.

    >>> import tempfile
    >>> tree = {"w": gdt.ones((2,))}
    >>> manager = gdt.CheckpointManager(tree, tempfile.mkdtemp(), max_to_keep=2)
    >>> [manager.save().name for _ in range(3)]
    ['ckpt-1.safetensors', 'ckpt-2.safetensors', 'ckpt-3.safetensors']
    >>> [path.name for path in manager.checkpoints], manager.latest.name
    (['ckpt-2.safetensors', 'ckpt-3.safetensors'], 'ckpt-3.safetensors')
    """

    def __init__(
        self,
        tree: Tree,
        directory: str | os.PathLike[str],
        max_to_keep: int | None = 5,
        *,
        name: str = "ckpt",
    ) -> None:
        if max_to_keep is not None and max_to_keep < 1:
            raise error(
                ArgumentError, "CheckpointManager", f"max_to_keep is {max_to_keep}, not 1 or more"
            )
        if Path(name).name != name or "\0" in name:
            raise error(
                ArgumentError,
                "CheckpointManager",
                f"name is {name!r}, which is no name of a file",
                remedy="Folders go into `directory`.",
            )
        self.tree, self.directory, self.max_to_keep, self.name = (
            tree,
            Path(directory),
            max_to_keep,
            name,
        )

    def __repr__(self) -> str:
        where = f"{str(self.directory)!r}, max_to_keep={self.max_to_keep}, name={self.name!r}"
        return f"CheckpointManager({type(self.tree).__name__}, {where})"

    @property
    def checkpoints(self) -> list[Path]:
        """The files there are, oldest first."""
        return [path for _, path in self._numbered()]

    @property
    def latest(self) -> Path | None:
        """The newest file; None if there is none."""
        return next(reversed(self.checkpoints), None)

    def save(self) -> Path:
        """Write the next checkpoint, then remove what is more than `max_to_keep`; returns its
        path."""
        numbered = self._numbered()
        number = _of_first_process(numbered[-1][0] + 1 if numbered else 1)
        path = save(self.directory / f"{self.name}-{number}.safetensors", self.tree)
        surplus = [] if self.max_to_keep is None else self.checkpoints[: -self.max_to_keep]
        unfinished = self.directory.glob(f".{glob.escape(self.name)}-*.safetensors.*.tmp")
        abandoned = [t for t in unfinished if not _is_running(t.name.split(".")[-2])]
        if processes.current().index == 0:
            for old in (*surplus, *abandoned):
                old.unlink(missing_ok=True)
        return path

    def restore(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Restore the newest checkpoint, or the one at `path`; returns its path.

        Raises CheckpointError if there is none, and as `gdt.checkpoint.restore` does.
        """
        found = Path(path) if path is not None else _of_first_process(self.latest)
        if found is None:
            raise error(
                CheckpointError, "CheckpointManager.restore", f"no checkpoint in {self.directory}"
            )
        return restore(found, self.tree).path

    def restore_or_initialize(self) -> Path | None:
        """Restore the newest checkpoint if there is one; None, and nothing changed, if not."""
        newest = _of_first_process(self.latest)
        return self.restore(newest) if newest is not None else None

    def _numbered(self) -> list[tuple[int, Path]]:
        form = re.compile(re.escape(self.name) + r"-(\d+)\.safetensors")
        files = self.directory.glob(f"{glob.escape(self.name)}-*.safetensors")
        found = [(form.fullmatch(p.name), p) for p in files]
        return sorted((int(m.group(1)), p) for m, p in found if m)
