"""The mesh on which arrays without a layout are created."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

from gdt.arguments import checked
from gdt.settings import Setting
from gdt.sharding import devices as device_kinds
from gdt.sharding.mesh import Mesh, checked_mesh, create_mesh

__all__ = [
    "default_mesh",
    "get_default_mesh",
    "set_default_mesh",
]


_default_mesh: ContextVar[Mesh | None] = ContextVar("gdt.default_mesh", default=None)
# Of all threads, outside of any `default_mesh` block; empty or one mesh.
_mesh_of_program: list[Mesh] = []
# Asked after both: a library on gdt may have its own way to choose a mesh.
_asked: list[Callable[[], Mesh | None]] = []


def chosen_mesh() -> Mesh | None:
    """Return the mesh of the innermost `default_mesh` block, outside of any that of
    `set_default_mesh`, and else that of a library; None if nobody has chosen one."""
    chosen = _default_mesh.get() or (_mesh_of_program[0] if _mesh_of_program else None)
    for ask in _asked if chosen is None else ():
        chosen = chosen or ask()
    return chosen


def ask_for_mesh(ask: Callable[[], Mesh | None]) -> None:
    """Have a function say the default mesh where the program chooses none; None: it does not."""
    _asked.append(ask)


def mesh_of_one() -> Mesh:
    """Return the default mesh where none was chosen: one device of this machine.

    An array on it was made without a choice of a mesh, so it joins the mesh of any other operand.
    """
    return create_mesh([("device", 1)], devices=[device_kinds.own_device()])


@checked
def get_default_mesh() -> Mesh:
    """Return the mesh on which arrays without a layout are created.

    It is that of the innermost `gdt.default_mesh` block; outside of any that of
    `gdt.set_default_mesh`, then that of `keras.distribution` if Keras runs on gdt, and else a mesh
    of one device of this machine, a GPU if there is one.

    >>> gdt.get_default_mesh().size
    1
    """
    return chosen_mesh() or mesh_of_one()


@checked
def set_default_mesh(mesh: Mesh | None) -> None:
    """Replicate on `mesh` all arrays that the program creates without a layout from now on, in
    every thread; None goes back to a mesh of one device.

    For scripts and notebooks; a `gdt.default_mesh` block goes first. Raises MeshError for an
    argument that is neither a Mesh nor None.

    >>> gdt.set_default_mesh(gdt.create_mesh([("batch", 8)]))
    >>> gdt.ones((4, 4)).layout.mesh
    Mesh(batch=8)
    >>> gdt.set_default_mesh(None)
    """
    _mesh_of_program[:] = [] if mesh is None else [checked_mesh(mesh, "set_default_mesh")]


@checked
def default_mesh(mesh: Mesh) -> Setting[Mesh]:
    """Replicate on `mesh` the arrays that are created without a layout until the end of a `with`
    block; as a statement, without `with`, from here on, in this thread.

    Raises MeshError for an argument that is no Mesh.

    >>> with gdt.default_mesh(gdt.create_mesh([("batch", 8)])):
    ...     gdt.ones((4, 4)).layout.mesh
    Mesh(batch=8)
    """
    return Setting(_default_mesh, checked_mesh(mesh, "default_mesh"))
