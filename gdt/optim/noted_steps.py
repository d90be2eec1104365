"""Steps of optimizers in several processes: parameters in one order, and notes to compare."""

from __future__ import annotations

import zlib
from collections.abc import Callable, MutableMapping, Sequence
from functools import lru_cache, partial
from typing import Any

from gdt.array.array import DistributedArray
from gdt.comm.agreement import SHOWN, Action, compared_origin
from gdt.comm.notes import note
from gdt.sharding.array_type import ArrayType
from gdt.sharding.mesh import Mesh

Scalars = tuple[float, ...]  # the numbers that differ from step to step
Owner = tuple[MutableMapping[Any, Any], Any]
Owners = Sequence[Sequence[Owner]]
Gradients = Sequence[DistributedArray]
# For each parameter the owners of it and of its state, and the gradients.
Updates = tuple[list[list[Owner]], list[DistributedArray]]
NoteStep = Callable[[str, tuple[float, ...]], None]  # of the name of a step, and its scalars


def in_one_order(
    owners: list[list[Owner]], gradients: list[DistributedArray]
) -> tuple[list[list[Owner]], list[DistributedArray], NoteStep]:
    """Return owners and gradients in the same order in all processes, which may have filled dicts
    in others, and the function that notes the step."""
    texts = [_compared_text(group, g) for group, g in zip(owners, gradients, strict=True)]
    order = sorted(range(len(texts)), key=texts.__getitem__)
    owners, gradients = [owners[i] for i in order], [gradients[i] for i in order]
    names = frozenset((str(key), mapping[key].type) for (mapping, key), *_ in owners)
    checksum = zlib.crc32("\n".join(sorted(texts)).encode())
    return owners, gradients, partial(_note, gradients[0].mesh, len(owners), names, checksum)


def _note(
    mesh: Mesh,
    count: int,
    names: frozenset[tuple[str, ArrayType]],
    checksum: int,
    step: str,
    scalars: tuple[float, ...],
) -> None:
    """Note a step for processes to compare.

    names: the names and types of the parameters. checksum: of their names and the origins of them,
    of their state and of their gradients."""
    text = f"{step} for {count} parameters, {_listed(names)} ({checksum:08x})"
    note(mesh, Action("update", text), scalars)


def _compared_text(owners: Sequence[Owner], gradient: DistributedArray) -> str:
    """Return the name of a parameter, and the origins of it, of its state and of its gradient."""
    arrays = [*[mapping[key] for mapping, key in owners], gradient]
    return f"{owners[0][1]} {' '.join([f'{compared_origin(x):x}' for x in arrays])}"


@lru_cache(maxsize=64)
def _listed(names: frozenset[tuple[str, ArrayType]]) -> str:
    """Return the names and types of the first parameters, and a checksum of those of all."""
    texts = sorted(f"{name}: {array_type}" for name, array_type in names)
    checksum = zlib.crc32("\n".join(texts).encode())
    return f"{'; '.join(texts[:SHOWN])} ({checksum:08x})"
