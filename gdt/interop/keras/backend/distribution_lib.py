"""Layouts of Keras' variables and batches: `keras.distribution` on gdt's meshes.

Keras asks for the functions of this module by their names; `keras.distribution.DeviceMesh`,
TensorLayout, LayoutMap, DataParallel and ModelParallel are Keras' own.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from typing import Any

import numpy as np
from keras.src import tree
from keras.src.backend.common import global_state

from gdt import distributed
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, LayoutError, error
from gdt.functions.packing import pack
from gdt.ops.creation import asarray
from gdt.ops.movement import relayout
from gdt.sharding import devices as device_kinds
from gdt.sharding import processes
from gdt.sharding.default_mesh import ask_for_mesh
from gdt.sharding.dtypes import kind_of
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh, create_mesh
from gdt.training.strategies import Strategy, current_strategy

Told = tuple[str, Any, Any]  # the name of a place, its owner, and the key
COUNT = "GDT_DEVICES"  # the environment variable of the number of virtual devices


# ---------------------------------------------------------------- devices


def list_devices(device_type: str | None = None) -> list[str]:
    """Return the names of all devices of all processes: GPUs if there are any, else virtual devices
    of the host, as many as the environment variable GDT_DEVICES says (1 for each process if it says
    nothing).

    device_type: "cpu" or "gpu", for devices of that kind.
    """
    kind = device_kinds.kind_of_type(device_type)
    text = os.environ.get(COUNT, "")
    if text and not (text.isdecimal() and int(text)):
        problem = f"the environment has {COUNT}={text}; it is a number of virtual devices"
        raise error(ArgumentError, "list_devices", problem)
    names = device_kinds.default_devices(kind, int(text or processes.current().count))
    return [name.replace("cuda", "gpu") for name in names]


def get_device_count(device_type: str | None = None) -> int:
    """Return the number of `list_devices(device_type)`."""
    return len(list_devices(device_type))


def _to_backend_device(name: Any) -> str:
    return str(name).lower()


def _to_backend_mesh(device_mesh: Any) -> Mesh:
    """Return the mesh of a `keras.distribution.DeviceMesh`."""
    sizes = [*zip(device_mesh.axis_names, device_mesh.shape, strict=True)]
    return create_mesh(sizes, devices=[*map(_to_backend_device, device_mesh.devices.flatten())])


def _to_backend_layout(tensor_layout: Any) -> Layout:
    """Return the layout of a `keras.distribution.TensorLayout`."""
    if tensor_layout.device_mesh is None:
        raise ValueError("Cannot create sharding when device mesh is not set for TensorLayout.")
    return Layout(list(tensor_layout.axes), tensor_layout.device_mesh.backend_mesh)


def device_mesh(mesh: Mesh) -> Any:
    """Return a mesh of gdt as a `keras.distribution.DeviceMesh`; its `backend_mesh` is `mesh`."""
    from keras.distribution import DeviceMesh  # noqa: PLC0415  # Keras imports this module first

    names = np.array([mesh.devices[i] for i in range(mesh.size)]).reshape(mesh.sizes)
    result = DeviceMesh(mesh.sizes, list(mesh.axis_names), names)
    result._backend_mesh = mesh
    return result


# ---------------------------------------------------------------- layouts


def layout_of(layout: Any) -> Layout:
    """Return the layout of gdt that a TensorLayout is, or that it is already."""
    return layout if isinstance(layout, Layout) else layout.backend_layout


def distribute_tensor(tensor: Any, layout: Any) -> DistributedArray:
    """Return an array in a layout, a TensorLayout or one of gdt's."""
    target = layout_of(layout)
    if isinstance(tensor, DistributedArray):
        return tensor if tensor.layout is target else relayout(tensor, target)
    return asarray(tensor, layout=target)


def distribute_variable(value: Any, layout: Any, path: str = "") -> DistributedArray:
    """Return the value of a variable in its layout. path: that of the variable, for errors.

    Raises LayoutError if the layout is one of another number of axes."""
    target = layout_of(layout)
    if target.rank != len(value.shape):
        raise error(
            LayoutError,
            "keras.distribution",
            f"the layout of the variable {path!r} has {target.rank} axes, and its shape "
            f"{list(value.shape)} has {len(value.shape)}",
            operands={"layout": target},
            remedy="Give a mesh axis or None for each, such as (None, 'model'), in the LayoutMap.",
        )
    return distribute_tensor(value, target)


def distribute_data_input(
    per_process_batch: Any, layout: Any, batch_dim_name: str | None = None
) -> DistributedArray:
    """Return the whole batch, of which `per_process_batch` is what this process has read.

    Its rows go to the devices of this process, equally many to each position along the axis
    `batch_dim_name` that the process owns. Of one process, rows need not divide.
    """
    target = layout_of(layout)
    mesh = target.mesh
    if mesh.num_processes == 1 or isinstance(per_process_batch, DistributedArray):
        return distribute_tensor(per_process_batch, target)
    batch = np.asarray(per_process_batch)
    if not batch.ndim or batch_dim_name is None:
        return asarray(batch, layout=target)
    axis = mesh.axis_names.index(batch_dim_name)
    positions = sorted({coordinate[axis] for coordinate in mesh.local_coordinates()})
    if len(batch) % len(positions):
        problem = f"{len(batch)} rows do not divide by the {len(positions)} devices of this process"
        remedy = "Pass a batch_size that does, and drop the rows that are left."
        raise error(ArgumentError, "fit", problem, remedy=remedy)
    parts = dict(zip(positions, np.split(batch, len(positions)), strict=True))
    return pack([parts[coordinate[axis]] for coordinate in mesh.local_coordinates()], target)


def distribute_batch(batch: Any) -> Any:
    """Return a batch of arrays of the host as arrays of gdt, in the layout of the distribution that
    is set; replicated, where none is."""
    return tree.map_structure(_distributed, batch)


def _distributed(leaf: Any) -> Any:
    if leaf is None:
        return None
    if not isinstance(leaf, DistributedArray):
        leaf = np.asarray(leaf)
        if kind_of(leaf.dtype) not in "biufc":
            return leaf  # text, which preprocessing layers take
    distribution = current_distribution()
    if distribution is None:
        return leaf if isinstance(leaf, DistributedArray) else asarray(leaf)
    if not leaf.ndim:
        mesh = distribution.device_mesh.backend_mesh
        return distribute_tensor(leaf, Layout.replicated(mesh, 0))
    layout = distribution.get_data_layout(leaf.shape)
    return distribute_data_input(leaf, layout, distribution.batch_dim_name)


def places(variables: Iterable[Any]) -> list[Told]:
    """Return the places of the arrays of variables, each once, as `gdt.function` asks for them."""
    distinct = {id(variable): variable for variable in variables}
    return [place for variable in distinct.values() for place in variable.__gdt_places__()]


# ---------------------------------------------------------------- distributions


def current_distribution() -> Any:
    """Return the distribution that Keras has set, or that of gdt's strategy in whose scope this
    line runs; None if there is neither."""
    return global_state.get_global_attribute("distribution") or distribution_of_strategy()


def _mesh() -> Mesh | None:
    distribution = current_distribution()
    return None if distribution is None else distribution.device_mesh.backend_mesh


ask_for_mesh(_mesh)  # arrays without a layout are made where the variables are


def distribution_of_strategy() -> Any:
    """Return the strategy of gdt in whose scope this line runs as a distribution of Keras."""
    strategy = current_strategy()
    return None if strategy is None else _distribution(strategy)


@cache
def _distribution(strategy: Strategy) -> Any:
    from keras.src.distribution import distribution_lib  # noqa: PLC0415  # as device_mesh

    class StrategyDistribution(distribution_lib.Distribution):  # type: ignore[misc]
        """Variables on all devices, and rows over the axes of a strategy."""

        def get_data_layout(self, data_shape: tuple[int, ...]) -> Layout:
            return strategy.layout(len(data_shape))

        def get_variable_layout(self, variable: Any) -> Any:
            own = getattr(variable, "_layout", None)
            return own or Layout.replicated(strategy.mesh, len(variable.shape))

        def get_tensor_layout(self, path: str) -> None:
            return None

    mesh = device_mesh(strategy.mesh)
    return StrategyDistribution(mesh, strategy.batch_axes[0], auto_shard_dataset=False)


# ---------------------------------------------------------------- processes


def initialize(
    job_addresses: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> None:
    """Connect the processes of a program, as `gdt.distributed.initialize` does.

    job_addresses: "host:port" of process 0, or of all processes, with commas; None under mpiexec
    and torchrun. Raises ArgumentError where their number is not `num_processes`.
    """
    addresses = job_addresses.split(",") if job_addresses else [None]
    if num_processes is not None and len(addresses) not in (1, num_processes):
        problem = f"job_addresses has {len(addresses)} addresses, and num_processes is"
        raise error(ArgumentError, "initialize", f"{problem} {num_processes}")
    if num_processes is None and len(addresses) > 1:
        num_processes = len(addresses)
    distributed.initialize(addresses[0], num_processes, process_id)


def num_processes() -> int:
    """Return the number of processes that run the program."""
    return distributed.process_count()


def process_id() -> int:
    """Return the index of this process, from 0."""
    return distributed.process_index()
