"""map_shards: functions of the shards of every device."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from gdt.array.array import DistributedArray
from gdt.array.registry import public
from gdt.backend import backend_of
from gdt.comm.agreement import Action, call_text, function_text
from gdt.comm.notes import note
from gdt.engine.custom_vjp import custom_vjp
from gdt.errors import GradientError, MeshError, ShapeError, error
from gdt.functions.packing import packed
from gdt.functions.placement import requested_layout
from gdt.observe import noted
from gdt.ops.creation import asarray
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import mesh_texts

__all__ = ["map_shards"]


@public
def map_shards(
    f: Callable[..., Any],
    in_layouts: Layout | Sequence[Layout],
    out_layout: Layout | tuple[Layout, ...],
) -> Callable[..., Any]:
    """A function of arrays that runs `f` on every device's shards: the way out of the global view.

    f: called once per mesh coordinate with the shards of the operands, read-only arrays without
        padding; returns the device's shard of the result (a tuple of them for several results). On
        GPUs they are CuPy's arrays, and the shard's device is the current one, so that a kernel
        (`cupy.RawKernel`) runs there, in order with gdt's own work.
    in_layouts: one layout for each operand, which is moved there; or one for all.
    out_layout: where the shards that `f` returns belong (a tuple for several results). Along mesh
        axes that wait for a reduction they are its operands, along others that split nothing they
        have to be equal.

    Raises what `pack` raises for shards that do not fit together; the result has no gradient.

    >>> mesh = gdt.create_mesh([("x", 2)])
    >>> split, summed = gdt.Layout(["x"], mesh), gdt.Layout([], mesh, partial=["x"])
    >>> total = gdt.map_shards(lambda x: x.sum(), split, summed)
    >>> int(total(gdt.arange(5)))
    10
    """
    ins = in_layouts if isinstance(in_layouts, Layout) else tuple(in_layouts)
    outs = out_layout if isinstance(out_layout, tuple) else (out_layout,)
    every = [
        requested_layout(w, "map_shards")
        for w in (*((ins,) if isinstance(ins, Layout) else ins), *outs)
    ]
    if len({w.mesh for w in every}) > 1:
        texts = mesh_texts([w.mesh for w in every])
        layouts_by_name = {
            f"layout {i}": f"{w} on {m}" for i, (w, m) in enumerate(zip(every, texts, strict=True))
        }
        raise error(MeshError, "the layouts are on different meshes", operands=layouts_by_name)

    def mapped(*arrays: Any) -> Any:
        layouts = (ins,) * len(arrays) if isinstance(ins, Layout) else ins
        if len(layouts) != len(arrays):
            problem = f"{len(arrays)} operands for {len(layouts)} layouts"
            raise error(ShapeError, problem)
        operands = [asarray(a, layout=w) for a, w in zip(arrays, layouts, strict=True)]
        results = _map_shards(*operands, f=f, out_layouts=outs)
        return results if isinstance(out_layout, tuple) else results[0]

    return mapped


@custom_vjp
def _map_shards(
    *arrays: DistributedArray, f: Callable[..., Any], out_layouts: tuple[Layout, ...]
) -> tuple[DistributedArray, ...]:
    mesh = out_layouts[0].mesh
    if mesh.num_processes > 1:
        text = call_text(f"map_shards of {function_text(f)}", [x.type for x in arrays], {})
        noted(lambda: note(mesh, Action("op", text), operands=arrays))
    coordinates = mesh.local_coordinates()
    parts: list[tuple[Any, ...]] = []
    shards_of_arrays = [x.shards for x in arrays]
    for i, coordinate in enumerate(coordinates):
        try:
            with backend_of(mesh).on(mesh, mesh.own_block(coordinate)):
                result = f(*(shards[i].data for shards in shards_of_arrays))
        except Exception as e:
            e.add_note(f"in map_shards, on device {coordinate}")
            raise
        result = result if isinstance(result, tuple) else (result,)
        if len(result) != len(out_layouts):
            problem = f"the function returned {len(result)} arrays for {len(out_layouts)} layouts"
            raise error(ShapeError, problem)
        parts.append(result)
    return tuple(
        packed(column, w, "map_shards")
        for column, w in zip(zip(*parts, strict=True), out_layouts, strict=True)
    )


def _no_gradient(g: Any, out: Any, *arrays: Any, **static: Any) -> Any:
    raise error(
        GradientError,
        "map_shards",  # has returned
        "a function of shards has no gradient",
        remedy="Stop it with gdt.stop_gradient, or write the function with gdt's ops.",
    )


_map_shards.vjp(joint=_no_gradient)
