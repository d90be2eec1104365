"""The arrays of a layer: created with its sizes, or at its first call, when the input has them; and
the dtype in which it computes with them: mixed precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from gdt import random
from gdt.arguments import checked, shown_value
from gdt.array.array import DistributedArray
from gdt.array.placing import checked_layout
from gdt.array.unmade import made_when_read, moved_unmade
from gdt.errors import ArgumentError, ShapeError, error, type_text
from gdt.nn.initializers import Initializer
from gdt.nn.module import Home, Module
from gdt.ops.elementwise import astype
from gdt.ops.joining import stack
from gdt.ops.movement import copy, relayout
from gdt.ops.shapes import reshape
from gdt.sharding.array_type import ArrayType
from gdt.sharding.default_mesh import get_default_mesh
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh

M = TypeVar("M", bound=Module)

COMPUTE_DTYPES = ("bfloat16", "float16", "float32", "float64")

# A layout, or a function of the shape and the dtype of an array.
LayoutOfArray = Layout | Callable[[tuple[int, ...], np.dtype], Layout]


@dataclass
class ParameterSpec:
    """The spec of an array of a layer, whose shape may not be known yet.

    layer: the name of the layer, for errors. layout: that of the array, or a function of its shape
    and dtype; None for one that follows from other arrays, or else a replicated one. key: of the
    random numbers; None for the next one of `gdt.random`. number: the number of the array in its
    layer; arrays of one key would hold equal numbers.
    """

    layer: str
    initializer: Initializer
    dtype: Any = np.float32
    layout: LayoutOfArray | None = None
    key: Any = None
    number: int = 0

    def create(
        self, shape: Sequence[int], mesh: Mesh | None = None, layout: Layout | None = None
    ) -> DistributedArray:
        """Return a new array. layout: that of a spec without one; None replicates on `mesh`,
        or on the default mesh.

        Raises ArgumentError for an initialiser that returns no array.
        """
        own = self.layout
        if callable(own):
            own = own(tuple(shape), np.dtype(self.dtype))
        layout = own or layout
        if layout is None and mesh is not None:
            layout = Layout.replicated(mesh, len(shape))
        if layout is not None:
            checked_layout(layout, len(shape), self.layer)
        key = self.key
        if key is not None and self.number:
            key = random.fold_in(random.key(key), self.number)
        array: Any = self.initializer(tuple(shape), self.dtype, layout, key)
        if not isinstance(array, DistributedArray):
            problem = f"initializer returned {shown_value(array)}, not an array"
            raise error(ArgumentError, problem)
        return array


def stacked_rows(arrays: Sequence[DistributedArray], layout: Layout) -> DistributedArray:
    """Return arrays of one type as the rows of one in this layout, which is made when it is read;
    those of them that are not made yet are made in the layout of a row."""
    first = arrays[0]
    array_type = ArrayType.of((len(arrays), *first.shape), first.dtype, layout)

    def stacked(layout: Layout) -> DistributedArray:
        own = layout.delete([0])
        rows = [relayout(x, own) if (y := moved_unmade(x, own)) is None else y for x in arrays]
        out = relayout(stack(rows), layout)
        # The rows of a device are a view of all of them, which would be kept.
        return out if layout.dims[0] == () else copy(out)

    def make(shape: tuple[int, ...], layout: Layout) -> DistributedArray:
        if shape == array_type.shape:
            return stacked(layout)
        return relayout(reshape(stacked(array_type.layout), shape), layout)

    return made_when_read(array_type, make)


# ---------------------------------------------------------------- mixed precision


@checked
def mixed_precision(model: M, dtype: str | None = "float16") -> M:
    """Let all layers of a model compute their products in `dtype`; return the model.

    dtype: the name of a floating-point dtype, also as Keras' "mixed_bfloat16"; None lets layers
        compute in the dtypes of their arrays again.

    Dense layers, convolutions, attention, recurrent layers and embeddings cast their inputs, and
    their weights at use, and return `dtype`. These stay in float32: parameters and their gradients,
    the optimizer's state, moving averages, the statistics of normalisation, sums within matrix
    products, convolutions and attention (its softmax included), and losses. bfloat16 has the range
    of float32 and 8 bits of precision. float16 has 11, and holds numbers up to 65,504 and none
    below 6e-8, so gradients need `gdt.optim.LossScaling`.

    Raises ArgumentError for another dtype. Sources: Micikevicius et al. 2018, "Mixed precision
    training"; Kalamkar et al. 2019, "A study of bfloat16 for deep learning training".

    >>> model = gdt.nn.mixed_precision(gdt.nn.Sequential(gdt.nn.Dense(4, 3)), "float16")
    >>> model(gdt.ones((2, 4), "float32")).dtype, model[0].weight.dtype
    (dtype('float16'), dtype('float32'))
    """
    if isinstance(dtype, str):
        dtype = dtype.removeprefix("mixed_")
    if dtype is not None and dtype not in COMPUTE_DTYPES:
        remedy = f"Use one of {', '.join(COMPUTE_DTYPES)}, or None."
        raise error(ArgumentError, f"dtype is {dtype!r}", remedy=remedy)
    for _, module in model.modules():
        module.compute_dtype = dtype
    return model


def in_compute_dtype(module: Module, *arrays: Any) -> Sequence[Any]:
    """Return floating-point arrays, and None for None, in the dtype in which a module computes."""
    dtype = module.compute_dtype
    if dtype is None:
        return arrays
    return [
        a if a is None or a.dtype == dtype or kind_of(a.dtype) != "f" else astype(a, dtype)
        for a in map(_as_array, arrays)
    ]


def _as_array(x: Any) -> Any:
    return x if x is None or isinstance(x, DistributedArray) else np.asarray(x)


# ---------------------------------------------------------------- sizes and meshes


def check_sizes(**sizes: int | None) -> None:
    """Raise ArgumentError for a size that is not positive; None is a size that is not known yet."""
    for label, size in sizes.items():
        if size is not None and size < 1:
            raise error(ArgumentError, f"{label} is {size}, not positive")


def features_of(layer: str, x: Any, rank: int = 1) -> int:
    """Return the size of the last axis of x; ShapeError for an x of fewer than `rank` axes."""
    if isinstance(x, list | tuple) and any(isinstance(item, DistributedArray) for item in x):
        problem = f"x is {type_text(x)} of {len(x)} arrays, and the layer takes one"
        remedy = "Join them first, such as by gdt.nn.Concatenate()."
        raise error(ShapeError, layer, problem, remedy=remedy)
    shape = np.shape(x)
    if len(shape) < rank:
        problem = f"x has shape {list(shape)}; the layer needs {rank} axes or more"
        raise error(ShapeError, problem)
    return int(shape[-1])


def check_features(layer: str, x: Any, size: int, rank: int = 1) -> None:
    """Raise ShapeError for an x of fewer than `rank` axes, or whose last axis is not of `size`."""
    features = features_of(layer, x, rank)
    if features != size:
        problem = f"x has {features} features in its last axis, and the layer's arrays have {size}"
        raise error(ShapeError, problem)


def mesh_of(layer: Module, x: Any) -> Mesh | None:
    """Return the mesh of the arrays that a layer creates for its first input: that of the scope in
    which the layer was made, or else of the input; None of one that is no distributed array."""
    if layer._home is not None:
        return layer._home.mesh
    return x.mesh if isinstance(x, DistributedArray) else None


def home_of(model: Module) -> Home | None:
    """Return where a model belongs, by the scope in which it, or else its first part of a scope,
    was made."""
    homes = [module._home for _, module in model.modules() if module._home is not None]
    return homes[0] if homes else None


def mesh_of_model(model: Module) -> Mesh:
    """Return the mesh of a model: that of its arrays, or of the layouts that its arrays will have,
    or of the scope in which it was made, or else the default mesh."""
    arrays, home = [*model.state().values()], home_of(model)
    if arrays:
        return arrays[0].mesh
    if home is not None:
        return home.mesh
    specs = [s for _, m in model.modules() for s in getattr(m, "_parameter_specs", {}).values()]
    layouts = [spec.layout for spec in specs if isinstance(spec.layout, Layout)]
    return layouts[0].mesh if layouts else get_default_mesh()


def awaits_arrays(model: Module) -> bool:
    """Return whether a layer of a model creates its arrays at its first call."""
    return any(hasattr(module, "_parameter_specs") for _, module in model.modules())
