"""Placement: batches of the host on the mesh of a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, MeshError, error
from gdt.nn.module import Module
from gdt.nn.parameters import awaits_arrays, home_of, mesh_of_model
from gdt.ops.creation import asarray
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.state.trees import mapped
from gdt.training.batches import class_weights, pair


class BatchPlacement:
    """The function that places batches for a model; it looks at the model until that has all
    arrays.

    batch_axes: the mesh axes over which rows are split; None for the first axis of the mesh.
    class_weight: factors of the weights of rows by their labels, which are looked up on the host,
        before labels are on devices; None for 1 each.
    """

    def __init__(
        self,
        model: Module,
        batch_axes: tuple[str, ...] | None,
        class_weight: Mapping[Any, float] | None = None,
    ) -> None:
        self._model, self._batch_axes, self._class_weight = model, batch_axes, class_weight
        self._rows: Layout
        self._place: Callable[[Any], Any]
        self._is_final = False

    def __call__(self, batch: Any) -> Any:
        if not self._is_final:
            arrays = [*self._model.state().values()]
            self._is_final = bool(arrays) and not awaits_arrays(self._model)
            mesh = mesh_of_model(self._model)
            self._rows = Layout([self._batch_axes or mesh.axis_names[:1]], mesh)
            self._place = partial(placed, rows=self._rows, dtype=_dtype_of(arrays))
        if self._class_weight is None:
            return mapped(self._place, batch)
        x, y, weights = pair(batch, "fit")
        factors = placed(class_weights(self._class_weight, y), self._rows)
        x, y, weights = mapped(self._place, (x, y, weights))
        return x, y, factors if weights is None else factors * weights


def check_mesh(op: str, model: Module, mesh: Mesh) -> None:
    """Raise MeshError for a model whose arrays lie on another mesh than that of the strategy in
    whose scope `op` is called."""
    name, array = next(iter(model.state().items()), ("", None))
    home = home_of(model)
    own = array.mesh if array is not None else home.mesh if home is not None else mesh
    if own is not mesh:
        what = f"{name} of the model" if name else "the model, by the scope that made it,"
        problem = f"{what} is on {own}, and the strategy's mesh is {mesh}"
        remedy = "Make the model, or load it, inside of the strategy's scope."
        raise error(MeshError, op, problem, remedy=remedy)


def _dtype_of(arrays: Sequence[DistributedArray]) -> np.dtype | None:
    """Return the dtype that all floating-point arrays of a model have, or None."""
    dtypes = {x.dtype for x in arrays if kind_of(x.dtype) == "f"}
    return dtypes.pop() if len(dtypes) == 1 else None


def placed(leaf: Any, rows: Layout, dtype: np.dtype | None = None) -> Any:
    """Return an array of the host on a mesh, its rows in the layout `rows`; other leaves of a batch
    as they are.

    dtype: that of floating-point numbers; None keeps theirs. Raises ArgumentError for text and
    objects."""
    if leaf is None or isinstance(leaf, DistributedArray):
        return leaf
    array = np.asarray(leaf)
    if kind_of(array.dtype) not in "biufc":
        problem = f"a batch holds values of dtype {array.dtype}"
        raise error(ArgumentError, "place", problem, remedy="Pass arrays of numbers.")
    if kind_of(array.dtype) == "f" and dtype is not None:
        array = array.astype(dtype, copy=False)
    dims = (*rows.dims, *[()] * (array.ndim - 1))[: array.ndim]
    return asarray(array, layout=Layout.of(rows.mesh, dims))
