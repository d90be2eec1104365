"""Whole arrays on meshes: copy_to_mesh, call_with_layout, and the layouts of arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.placing import checked_layout
from gdt.array.registry import public
from gdt.backend import synchronize as wait
from gdt.comm.transport import wait_for_all
from gdt.errors import DtypeError, LayoutError, error, type_text
from gdt.ops.creation import asarray
from gdt.ops.movement import relayout
from gdt.sharding.default_mesh import default_mesh
from gdt.sharding.layout import Layout
from gdt.state.trees import mapped

__all__ = [
    "call_with_layout",
    "check_layout",
    "copy_to_mesh",
    "fetch_layout",
    "is_distributed",
    "synchronize",
]


# ---------------------------------------------------------------- facts


@public
def is_distributed(x: object) -> bool:
    """Whether `x` is a distributed array.

    >>> gdt.is_distributed(gdt.ones(2)), gdt.is_distributed([1.0, 1.0])
    (True, False)
    """
    return isinstance(x, DistributedArray)


@public
def fetch_layout(x: DistributedArray) -> Layout:
    """The layout of a distributed array; DtypeError for anything else.

    >>> gdt.fetch_layout(gdt.ones(2))
    Layout([-], Mesh(device=1))
    """
    if not isinstance(x, DistributedArray):
        raise error(DtypeError, f"{type_text(x)} has no layout")
    return x.layout


@public
def check_layout(x: DistributedArray, layout: Layout) -> None:
    """Raise LayoutError unless the layout of `x` is `layout`.

    >>> x = gdt.ones(2)
    >>> gdt.check_layout(x, x.layout)
    """
    if fetch_layout(x) is not layout:
        raise error(
            LayoutError,
            "the layout is not the expected one",
            operands={"x": f"{x.type} on {x.mesh}", "expected": repr(layout)},
            remedy="Bring it there with gdt.relayout(x, layout).",
        )


@public
def synchronize() -> None:
    """Wait until every device of this process has done its work.

    Raises DistributedError if a collective fails or does not end in time.

    >>> gdt.synchronize()
    """
    wait_for_all()
    wait()


# ---------------------------------------------------------------- whole arrays


@public
def copy_to_mesh(
    tensor: Any, layout: Layout, source_layout: Layout | None = None
) -> DistributedArray:
    """An array of the host, or of another mesh, in a layout.

    source_layout: the layout that `tensor` is expected to have; LayoutError if it has another.

    Follows `tf.experimental.dtensor.copy_to_mesh`; sizes need not divide.

    >>> layout = gdt.Layout(["x"], gdt.create_mesh([("x", 2)]))
    >>> [shard.data.tolist() for shard in gdt.copy_to_mesh([1, 2, 3], layout).shards]
    [[1, 2], [3]]
    """
    if source_layout is not None and isinstance(tensor, DistributedArray):
        check_layout(tensor, source_layout)
    return asarray(tensor, layout=requested_layout(layout, "copy_to_mesh"))


def requested_layout(layout: object, name: str) -> Layout:
    return checked_layout(layout, layout.rank if isinstance(layout, Layout) else 0, name)


@public
def call_with_layout(
    fn: Callable[..., Any], layout: Layout | None, *args: Any, **kwargs: Any
) -> Any:
    """Call `fn(*args, **kwargs)` so that the arrays that it returns are in `layout`; None calls it
    as it is.

    It runs with the layout's mesh as the default. A function with an argument `layout`, such as
    `gdt.ones`, is given it, so that each device makes its own shard; what others return (an array,
    or a tuple, list or dict of arrays) is moved.

    Follows `tf.experimental.dtensor.call_with_layout`.

    >>> layout = gdt.Layout(["x", None], gdt.create_mesh([("x", 2)]))
    >>> gdt.call_with_layout(gdt.ones, layout, (4, 3)).layout is layout
    True
    """
    if layout is None:
        return fn(*args, **kwargs)
    layout = requested_layout(layout, "call_with_layout")
    with default_mesh(layout.mesh):
        if _takes_layout(fn):
            return fn(*args, layout=layout, **kwargs)
        return mapped(lambda leaf: relayout(leaf, layout), fn(*args, **kwargs))


def _takes_layout(fn: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(fn).parameters
    except (TypeError, ValueError):  # builtins without a signature
        return False
    return "layout" in parameters and parameters["layout"].kind is not inspect.Parameter.VAR_KEYWORD
