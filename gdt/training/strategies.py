"""Strategies: how models and batches are spread over devices, in words of tf.distribute and Keras.

A strategy is a mesh, the axes of it over which the rows of batches are split, and perhaps a
LayoutMap. Inside its `scope()` models are made on that mesh, and a `gdt.Trainer`, or
`model.compile`, takes the strategy on. One program computes all replicas: a function that a
strategy runs sees whole batches, so a mean in it is the mean over all rows of all replicas, and
gradients are summed over replicas as they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import numpy as np

from gdt.arguments import checked, checked_class, compared_first
from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.data.feed import REITERABLE
from gdt.errors import ArgumentError, LayoutError, error, type_text
from gdt.nn.layout_map import LayoutMap
from gdt.nn.module import Home, making_models
from gdt.ops.movement import relayout
from gdt.ops.reductions import mean, sum_
from gdt.ops.shapes import reshape
from gdt.sharding import devices as device_kinds
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import WAYS, Mesh, create_mesh
from gdt.state.trees import mapped
from gdt.training.input_batches import InputContext, JoinedBatches, PlacedBatches
from gdt.training.placement import placed

__all__ = ["DataParallel", "MirroredStrategy", "ModelParallel", "Strategy", "current_strategy"]

BATCH = "batch"
TENSORFLOW = {  # TensorFlow's classes of cross_device_ops
    "NcclAllReduce": "all_reduce",
    "ReductionToOneDevice": "to_one",
    "HierarchicalCopyAllReduce": "hierarchical",
}
HIERARCHICAL = """Make a mesh that says which devices share a host, of 2 hosts with 4 devices:
  mesh = gdt.create_mesh([("host", 2), ("device", 4)], reduce_by="hierarchical")
  gdt.MirroredStrategy(mesh=mesh)"""
_current: ContextVar[Strategy | None] = ContextVar("gdt.strategy", default=None)


@checked
def current_strategy() -> Strategy | None:
    """Return the strategy in whose scope this line runs, or None.

    >>> with gdt.MirroredStrategy(2).scope():
    ...     gdt.current_strategy()
    MirroredStrategy(Mesh(batch=2))
    """
    return _current.get()


class Strategy:
    """The base of strategies: a mesh, and the names of the axes that split batches.

    >>> strategy = gdt.MirroredStrategy(4)
    >>> isinstance(strategy, gdt.Strategy), strategy.num_replicas_in_sync
    (True, 4)
    """

    layout_map: LayoutMap | None = None

    def __init__(self, mesh: Mesh, batch_axes: Sequence[str]) -> None:
        self.mesh, self.batch_axes = mesh, tuple(batch_axes)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.mesh})"

    @property
    def num_replicas_in_sync(self) -> int:
        """The number of replicas, into which the rows of each batch are split."""
        return int(np.prod([self.mesh.dim_size(axis) for axis in self.batch_axes], dtype=int))

    @contextmanager
    def scope(self) -> Iterator[Strategy]:
        """Make models for this strategy inside the `with` block, and compile them for it.

        Models that are made inside belong to the strategy also outside: layers without sizes create
        their arrays on its mesh, and `fit` and the others split batches over its axes. A LayoutMap
        is applied to them at the end of the block, as its own `scope` does.

        >>> strategy = gdt.MirroredStrategy(4)
        >>> with strategy.scope():
        ...     model = gdt.nn.Dense(2, 1)
        >>> model.weight.layout
        Layout([-, -], Mesh(batch=4))
        """
        token = _current.set(self)
        try:
            home = Home(self.mesh, self.batch_axes)
            layouts = self.layout_map
            with making_models(home) if layouts is None else layouts.applied_to_models(home):
                yield self
        finally:
            _current.reset(token)

    def layout(self, rank: int) -> Layout:
        """Return the layout of an array of a batch: its rows are split over the replicas.

        >>> gdt.MirroredStrategy(4).layout(rank=2)
        Layout(['batch', -], Mesh(batch=4))
        """
        axes = self.batch_axes[0] if len(self.batch_axes) == 1 else self.batch_axes
        return Layout([axes, *[None] * (rank - 1)][:rank], self.mesh)

    def place(self, batch: Any) -> Any:
        """Return a batch with the arrays of the host split over the replicas.

        >>> import numpy as np
        >>> gdt.MirroredStrategy(4).place(np.ones((8, 2))).layout
        Layout(['batch', -], Mesh(batch=4))
        """
        return mapped(partial(placed, rows=self.layout(1)), batch)

    def experimental_distribute_dataset(self, dataset: Iterable[Any]) -> Iterable[Any]:
        """Return the batches of a data set, global ones, split over the replicas.

        dataset: batches as arrays of the host, in tuples, lists and dicts. Rows need not divide: 10
        over 4 replicas are 3, 3, 3 and 1.

        >>> import numpy as np
        >>> strategy = gdt.MirroredStrategy(4)
        >>> (batch,) = strategy.experimental_distribute_dataset([np.arange(10)])
        >>> [len(part) for part in strategy.experimental_local_results(batch)]
        [3, 3, 3, 1]
        """
        self._check_dataset("experimental_distribute_dataset", dataset)
        return PlacedBatches(dataset, self.place)

    def _check_dataset(self, method: str, dataset: Any) -> None:
        """Raise ArgumentError for a data set that yields no batches."""
        if isinstance(dataset, str) or not isinstance(dataset, Iterable):
            problem = f"dataset is {type_text(dataset)}, which yields no batches"
            op = f"{type(self).__name__}.{method}"
            raise error(ArgumentError, op, problem, remedy=REITERABLE)

    @compared_first
    def distribute_datasets_from_function(
        self, dataset_fn: Callable[[InputContext], Iterable[Any]]
    ) -> Iterable[Any]:
        """Return the batches of the data set that `dataset_fn(context)` makes, which are of one
        replica each: the replicas take them in turn.

        >>> import numpy as np
        >>> parts = lambda context: [np.arange(2), np.arange(2, 4)]  # for two replicas
        >>> (x,) = gdt.MirroredStrategy(2).distribute_datasets_from_function(parts)
        >>> x.tolist(), x.layout.sharding_specs
        ([0, 1, 2, 3], ['batch'])
        """
        dataset = dataset_fn(InputContext(self.num_replicas_in_sync))
        self._check_dataset("distribute_datasets_from_function", dataset)
        return PlacedBatches(JoinedBatches(dataset, self.num_replicas_in_sync), self.place)

    @compared_first
    def run(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Return `fn(*args, **kwargs)`, computed on the parts of all replicas at once.

        Arguments that hold arrays of the host are split as batches are. `fn` sees whole batches:
        `gdt.sum(losses) / global_batch_size` and `gdt.mean(losses)` are those of all replicas.

        >>> import numpy as np
        >>> strategy = gdt.MirroredStrategy(2)
        >>> rows = strategy.run(lambda x: x * 2, args=(np.arange(4.0),))
        >>> float(strategy.reduce("MEAN", rows, axis=0))
        3.0
        """
        with self.scope():
            return fn(*[self.place(arg) for arg in args], **(kwargs or {}))

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """Return the sum or the mean of a value over the replicas, replicated on all devices.

        reduce_op: "SUM" or "MEAN". axis: 0 reduces rows too, the mean by their true number; None
        adds up the parts of the replicas, which then have equally many rows. A value whose rows are
        not split is that of all replicas already, and is returned as it is.

        Raises ArgumentError for another operation or axis, and for parts of different sizes.

        >>> import numpy as np
        >>> strategy = gdt.MirroredStrategy(2)
        >>> (x,) = strategy.experimental_distribute_dataset([np.array([0, 2, 4, 6])])
        >>> strategy.reduce("SUM", x).tolist(), int(strategy.reduce("SUM", x, axis=0))
        ([4, 8], 12)
        """
        name = str(getattr(reduce_op, "name", reduce_op)).upper()
        op = f"{type(self).__name__}.reduce"
        if name not in ("SUM", "MEAN"):
            problem = f"reduce_op is {reduce_op!r}"
            raise error(ArgumentError, op, problem, remedy="It is 'SUM' or 'MEAN'.")
        if axis not in (None, 0):
            problem = f"axis is {axis!r}"
            raise error(ArgumentError, op, problem, remedy="It is 0, for the rows, or None.")
        return mapped(lambda leaf: self._reduced(op, name, leaf, axis), value)

    def _reduced(self, op: str, name: str, value: Any, axis: int | None) -> Any:
        if not isinstance(value, DistributedArray):
            return value
        value = value.resolve()
        if not value.ndim or value.layout.num_shards(0) == 1:
            return value
        function = sum_ if name == "SUM" else mean
        if axis is None:
            replicas, rows = self.num_replicas_in_sync, value.shape[0]
            if rows % replicas:
                problem = f"{rows} rows are not equally many in {replicas} replicas"
                remedy = "Reduce rows too, with axis=0."
                raise error(ArgumentError, op, problem, remedy=remedy)
            value = reshape(value, (replicas, rows // replicas, *value.shape[1:]))
        return function(value, axis=0).resolve()

    def gather(self, value: DistributedArray, axis: int = 0) -> DistributedArray:
        """Return an array whole on every device, its parts joined along `axis`, which is 0.

        Raises ArgumentError for another axis.

        >>> strategy = gdt.MirroredStrategy(2)
        >>> import numpy as np
        >>> strategy.gather(strategy.place(np.arange(4))).layout
        Layout([-], Mesh(batch=2))
        """
        if axis != 0:
            op, problem = f"{type(self).__name__}.gather", f"axis is {axis!r}"
            raise error(ArgumentError, op, problem, remedy="Parts are rows: it is 0.")
        return relayout(value, Layout.replicated(self.mesh, value.ndim))

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """Return the parts of the replicas of this process as NumPy arrays, each whole along the
        mesh axes that split no batches. Of a value that is not split, or is no array, the part of
        every replica is the value.

        >>> import numpy as np
        >>> strategy = gdt.MirroredStrategy(2)
        >>> parts = strategy.experimental_local_results(strategy.place(np.arange(4)))
        >>> [part.tolist() for part in parts]
        [[0, 1], [2, 3]]
        """
        if not isinstance(value, DistributedArray):
            return (value,) * self.num_replicas_in_sync
        mesh = value.mesh
        axes = [a for a, name in enumerate(mesh.axis_names) if name in self.batch_axes]
        dims = tuple(tuple(a for a in each if a in axes) for each in value.layout.dims)
        shards: dict[tuple[int, ...], Any] = {}
        for shard in relayout(value, Layout.of(mesh, dims)).shards:
            shards.setdefault(tuple(shard.coordinate[a] for a in axes), shard.data)
        return tuple(map(backend_of(mesh).to_host, shards.values()))


# ---------------------------------------------------------------- the strategies


def _devices(devices: int | Sequence[str] | None, reduce_by: str = WAYS[0]) -> Mesh:
    """Return the mesh of one axis, the batch, over devices."""
    if isinstance(devices, int):
        return create_mesh([(BATCH, devices)], reduce_by=reduce_by)
    names = device_kinds.default_devices(None, 1) if devices is None else tuple(devices)
    return create_mesh([(BATCH, len(names))], devices=names, reduce_by=reduce_by)


@checked_class(eager=True)
class MirroredStrategy(Strategy):
    """Data parallel training: every device has all variables and a part of each batch.

    devices: the names of devices, such as "cuda:0"; or how many virtual devices of the host, or
        coordinates over its GPUs, to use; None for all GPUs, or one device of the host.
    cross_device_ops: how gradients are summed, `"all_reduce"` or `"to_one"`, as `reduce_by` of
        `gdt.create_mesh` has it; also an object of TensorFlow's NcclAllReduce or
        ReductionToOneDevice.
    mesh: the mesh itself, in place of devices; batches are split over all its axes. Its `reduce_by`
        says how gradients are summed, also by `"hierarchical"`, between hosts and in them.

    `ModelParallel` with `layouts[".*"] = gdt.nn.Sharded(state="batch")` sums each share of the
    gradients on one device. Follows `tf.distribute.MirroredStrategy`; see the module for what `run`
    does differently.

    Raises ArgumentError for both devices and a mesh, and for cross_device_ops that do not fit.

    >>> import numpy as np
    >>> strategy = gdt.MirroredStrategy(2)
    >>> with strategy.scope():
    ...     model = gdt.nn.Dense(1, 1, key=0)
    ...     model.compile(gdt.optim.SGD(0.1), "mse")
    >>> history = model.fit(np.ones((100, 1)), np.ones((100, 1)), epochs=20, verbose=0)
    >>> model.predict(np.ones((1, 1)), verbose=0).round(2).tolist()
    [[1.0]]
    """

    def __init__(
        self,
        devices: int | Sequence[str] | None = None,
        cross_device_ops: Any = None,
        *,
        mesh: Mesh | None = None,
    ) -> None:
        op = type(self).__name__
        named = isinstance(cross_device_ops, str)
        reduce_by = cross_device_ops if named else type(cross_device_ops).__name__
        if cross_device_ops is None:
            reduce_by = WAYS[0] if mesh is None else mesh.reduce_by
        reduce_by = TENSORFLOW.get(reduce_by, reduce_by)
        if reduce_by not in WAYS:
            remedy = f"It is one of {', '.join(map(repr, WAYS))}."
            raise error(ArgumentError, op, f"cross_device_ops is {reduce_by!r}", remedy=remedy)
        if mesh is not None and devices is not None:
            problem = "both devices and a mesh are given"
            raise error(ArgumentError, op, problem, remedy="Pass one of them.")
        if mesh is not None and reduce_by != mesh.reduce_by:
            problem = f"cross_device_ops is {reduce_by!r}, and the mesh has {mesh.reduce_by!r}"
            remedy = f"Write gdt.create_mesh(..., reduce_by={reduce_by!r})."
            raise error(ArgumentError, op, problem, remedy=remedy)
        if mesh is None and reduce_by == "hierarchical":
            problem = "devices in a row have no hierarchy"
            raise error(ArgumentError, op, problem, remedy=HIERARCHICAL)
        mesh = _devices(devices, reduce_by) if mesh is None else mesh
        super().__init__(mesh, mesh.axis_names)


@checked_class(eager=True)
class DataParallel(Strategy):
    """Data parallel training by Keras 3's name: every device has all variables.

    device_mesh: a mesh, of which the first axis splits batches. devices: as in MirroredStrategy, if
    there is no mesh.

    Raises ArgumentError for both.

    >>> gdt.DataParallel(gdt.create_mesh([("data", 4), ("model", 2)])).num_replicas_in_sync
    4
    """

    def __init__(
        self, device_mesh: Mesh | None = None, devices: int | Sequence[str] | None = None
    ) -> None:
        if device_mesh is not None and devices is not None:
            problem = "both devices and a device_mesh are given"
            raise error(ArgumentError, problem, remedy="Pass one of them.")
        mesh = _devices(devices) if device_mesh is None else device_mesh
        super().__init__(mesh, mesh.axis_names[:1])


@checked_class(eager=True)
class ModelParallel(Strategy):
    """Training with variables split as a LayoutMap says, and batches over one axis of its mesh.

    layout_map: the layouts of variables by their names; others are replicated. batch_dim_name: the
    axis of the mesh that splits batches; the first one if not given.

    Models that the scope makes have these layouts at its end, and a model that a `gdt.Trainer`, or
    `model.compile`, takes on in the scope has them at once; layers without sizes create their
    arrays in them. Follows Keras 3.

    Raises LayoutError for an axis that the mesh lacks.

    >>> layouts = gdt.nn.LayoutMap(gdt.create_mesh([("batch", 2), ("model", 4)]))
    >>> layouts[".*weight"] = [None, "model"]
    >>> with gdt.ModelParallel(layout_map=layouts).scope():
    ...     model = gdt.nn.Dense(3, 8)
    ...     model.compile("adam", "mse")
    >>> model.weight.layout
    Layout([-, 'model'], Mesh(batch=2, model=4))
    """

    def __init__(self, *, layout_map: LayoutMap, batch_dim_name: str | None = None) -> None:
        names = layout_map.mesh.axis_names
        if batch_dim_name is not None and batch_dim_name not in names:
            problem = f"batch_dim_name is {batch_dim_name!r}, and the mesh has {', '.join(names)}"
            raise error(LayoutError, problem)
        super().__init__(layout_map.mesh, (batch_dim_name or names[0],))
        self.layout_map = layout_map
