"""Mesh: devices arranged in a grid whose axes have names.

A mesh is immutable and interned: equal arguments give the same object, so `is` compares meshes and
their hash is their identity.

A *coordinate* of the mesh is one device of the program. A *block* is the memory of one physical
device, which hosts a box of coordinates: all of them when the devices are virtual ones of this
host, one of them when every coordinate is a GPU of its own. `grid` says how many blocks lie along
each mesh axis, `box` how many coordinates of each axis a block hosts; `grid[k] * box[k] ==
sizes[k]`.

Where several processes run the program (`gdt.distributed`), each owns the same number of blocks:
row-major, those of process 0 come first. A mesh of one coordinate belongs to every process by
itself.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import ClassVar, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from gdt.arguments import checked, checked_class
from gdt.errors import MeshError, error
from gdt.sharding import devices as device_kinds
from gdt.sharding import processes
from gdt.sharding.grid import MeshDimension, MeshDims, block_grid, check_owners, checked_dims
from gdt.sharding.immutable import Immutable

__all__ = [
    "Mesh",
    "create_mesh",
]


LARGEST = 1 << 16  # coordinates of a mesh; each has a device name of its own
WAYS = "all_reduce", "to_one", "hierarchical"  # of all-reduces; the first is the default


class LocalPlace(NamedTuple):
    """The place of a coordinate that this process hosts: the position of its device in the mesh,
    that of its block in `blocks`, and its place in the box of that block."""

    device_id: int
    coordinate: tuple[int, ...]
    block: int
    inside: tuple[int, ...]


@checked_class("__new__")
class Mesh(Immutable):
    """Devices in a grid with named axes; made by `gdt.create_mesh`.

    >>> mesh = gdt.create_mesh([("batch", 4), ("model", 2)])
    >>> mesh, mesh.size, mesh["model"].size
    (Mesh(batch=4, model=2), 8, 2)
    >>> mesh is gdt.create_mesh({"batch": 4, "model": 2})
    True
    """

    axis_names: tuple[str, ...]
    sizes: tuple[int, ...]
    devices: tuple[str, ...]  # of every coordinate, row-major
    device_kind: str  # of all of them: the part of a name before the colon
    name: str
    grid: tuple[int, ...]
    box: tuple[int, ...]
    all_blocks: tuple[tuple[int, ...], ...]  # grid coordinate of every block, row-major
    blocks: tuple[tuple[int, ...], ...]  # grid coordinates of the blocks of this process
    divided: bool  # whether there are several blocks, in this process or in others
    num_processes: int  # how many processes own a part of the mesh
    reduce_by: str  # how all-reduces are carried out

    instead = "Make another with gdt.create_mesh; gdt.copy_to_mesh(x, layout) moves an array to it."
    _interned: ClassVar[WeakValueDictionary[tuple[object, ...], Mesh]] = WeakValueDictionary()

    def __new__(cls, *args: object, **kwargs: object) -> Mesh:
        raise error(MeshError, "a mesh is not constructed directly", remedy="Use gdt.create_mesh.")

    @classmethod
    def _of(
        cls,
        axis_names: tuple[str, ...],
        sizes: tuple[int, ...],
        devices: tuple[str, ...],
        name: str,
        grid: tuple[int, ...],
        num_processes: int = 1,
        reduce_by: str = WAYS[0],
    ) -> Mesh:
        """Return the one mesh of these attributes, without checking them."""
        # A forked process inherits the meshes of its parent, so the process is part of the key.
        # An abstract mesh is that of the first of as many processes as it has devices.
        is_abstract = devices[0].startswith("abstract")
        process = 0 if is_abstract else processes.current().index
        key = (axis_names, sizes, devices, name, grid, num_processes, reduce_by, process)
        mesh = cls._interned.get(key)
        if mesh is None:
            all_blocks = tuple(itertools.product(*map(range, grid)))
            own = len(all_blocks) // num_processes
            first = process * own if num_processes > 1 else 0
            self = object.__new__(cls)
            self._set(
                axis_names=axis_names,
                sizes=sizes,
                devices=devices,
                device_kind=devices[0].split(":")[0],
                name=name,
                grid=grid,
                box=tuple(size // blocks for size, blocks in zip(sizes, grid, strict=True)),
                all_blocks=all_blocks,
                blocks=all_blocks[first : first + own],
                divided=len(all_blocks) > 1,
                num_processes=num_processes,
                reduce_by=reduce_by,
            )
            mesh = cls._interned.setdefault(key, self)  # another thread's, if it was first
        return mesh

    @classmethod
    def interned(cls) -> list[Mesh]:
        """Return every mesh of this process to which something refers.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> mesh in gdt.Mesh.interned()
        True
        """
        return list(cls._interned.values())

    # ---- facts

    @property
    def ndim(self) -> int:
        """The number of mesh axes."""
        return len(self.sizes)

    @cached_property
    def size(self) -> int:
        """The number of coordinates."""
        return math.prod(self.sizes)

    @property
    def dim_names(self) -> list[str]:
        """The names of the axes, under the name that TF DTensor gives them."""
        return list(self.axis_names)

    @property
    def strides(self) -> list[int]:
        """For each axis, the distance of neighbours along it in the row-major list of devices."""
        return [math.prod(self.sizes[k + 1 :]) for k in range(self.ndim)]

    def shape(self) -> list[int]:
        """Return the sizes of the axes.

        >>> gdt.create_mesh([("x", 2), ("y", 3)]).shape()
        [2, 3]
        """
        return list(self.sizes)

    def axis_index(self, name: str, op: str = "Mesh") -> int:
        """Return the position of the axis called `name`; raise MeshError if there is none.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> mesh.axis_index("y")
        1
        """
        if name not in self.axis_names:
            raise error(
                MeshError,
                op,
                f"no mesh axis {name!r}",
                operands={"mesh": self},
                remedy=f"Its axes are {', '.join(map(repr, self.axis_names))}.",
            )
        return self.axis_names.index(name)

    def dim_size(self, name: str) -> int:
        """Return the number of coordinates along the axis called `name`.

        >>> gdt.create_mesh([("x", 2), ("y", 3)]).dim_size("y")
        3
        """
        return self.sizes[self.axis_index(name, "Mesh.dim_size")]

    def contains_dim(self, name: str) -> bool:
        """Return whether an axis is called `name`.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> mesh.contains_dim("y"), mesh.contains_dim("z")
        (True, False)
        """
        return name in self.axis_names

    def __getitem__(self, name: str) -> MeshDimension:
        return MeshDimension(name, self.sizes[self.axis_index(name, "Mesh[...]")])

    # ---- devices

    def device_type(self) -> str:
        """Return `"CPU"`, `"GPU"` or `"ABSTRACT"`.

        >>> gdt.create_mesh([("x", 2)], device_type="CPU").device_type()
        'CPU'
        """
        return {"cpu": "CPU", "abstract": "ABSTRACT"}.get(self.device_kind, "GPU")

    def global_devices(self) -> list[str]:
        """Return the device of every coordinate, row-major.

        >>> gdt.create_mesh([("x", 2)], device_type="CPU").global_devices()
        ['cpu:0', 'cpu:1']
        """
        return list(self.devices)

    def local_devices(self) -> list[str]:
        """Return the devices of the coordinates that this process hosts.

        >>> gdt.create_mesh([("x", 2)], device_type="CPU").local_devices()
        ['cpu:0', 'cpu:1']
        """
        return [self.devices[i] for i in self.local_device_ids()]

    def num_local_devices(self) -> int:
        """Return the number of coordinates that this process hosts.

        >>> gdt.create_mesh([("x", 4)]).num_local_devices()
        4
        """
        return len(self.local_device_ids())

    def global_device_ids(self) -> np.ndarray:
        """Return the position of every coordinate in `global_devices()`: int64, shaped as the
        mesh.

        >>> gdt.create_mesh([("x", 2), ("y", 2)]).global_device_ids().tolist()
        [[0, 1], [2, 3]]
        """
        return np.arange(self.size).reshape(self.sizes)

    def local_device_ids(self) -> list[int]:
        """Return the positions in `global_devices()` of the coordinates of this process.

        >>> gdt.create_mesh([("x", 4)]).local_device_ids()
        [0, 1, 2, 3]
        """
        return [int(np.ravel_multi_index(c, self.sizes)) for c in self.local_coordinates()]

    def min_global_device_id(self) -> int:
        """Return the smallest of `global_device_ids()`, which is 0.

        >>> gdt.create_mesh([("x", 4)]).min_global_device_id()
        0
        """
        return 0

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """Return an iterator of all coordinates, row-major.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> list(mesh.coordinates())
        [(0, 0), (0, 1), (1, 0), (1, 1)]
        """
        return itertools.product(*map(range, self.sizes))

    def local_coordinates(self) -> list[tuple[int, ...]]:
        """Return the coordinates that this process hosts, row-major.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> mesh.local_coordinates()
        [(0, 0), (0, 1), (1, 0), (1, 1)]
        """
        return [place.coordinate for place in self.local_places]

    @cached_property
    def local_places(self) -> tuple[LocalPlace, ...]:
        """The places in blocks of the coordinates that this process hosts, row-major.

        >>> gdt.create_mesh([("x", 4)], device_type="CPU", blocks=2).local_places[3]
        LocalPlace(device_id=3, coordinate=(3,), block=1, inside=(1,))
        """
        position = {at: i for i, at in enumerate(self.blocks)}
        places = []
        for device_id, coordinate in enumerate(self.coordinates()):
            at, inside = self.block_of(coordinate)
            if at in position:
                places.append(LocalPlace(device_id, coordinate, position[at], inside))
        return tuple(places)

    def block_of(self, coordinate: Sequence[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the grid coordinate of the block that hosts `coordinate`, and the place of
        `coordinate` in that block's box.

        >>> mesh = gdt.create_mesh([("x", 4)], device_type="CPU", blocks=2)
        >>> mesh.block_of((3,))
        ((1,), (1,))
        """
        pairs = [divmod(c, b) for c, b in zip(coordinate, self.box, strict=True)]
        return tuple(p[0] for p in pairs), tuple(p[1] for p in pairs)

    def own_block(self, coordinate: Sequence[int]) -> int:
        """Return the position in `blocks` of the block that hosts `coordinate`, which must be a
        coordinate of this process.

        >>> mesh = gdt.create_mesh([("x", 4)], device_type="CPU", blocks=2)
        >>> mesh.own_block((3,))
        1
        """
        return self.blocks.index(self.block_of(coordinate)[0])

    def device_location(self, device_id: int) -> list[int]:
        """Return the coordinate of the device at position `device_id` of `global_devices()`.

        Raises MeshError for a position outside the mesh.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> mesh.device_location(3)
        [1, 1]
        """
        if not 0 <= device_id < self.size:
            raise error(
                MeshError,
                f"device {device_id} is outside 0..{self.size - 1}",
                operands={"mesh": self},
            )
        return [int(i) for i in np.unravel_index(device_id, self.sizes)]

    def coords(self, device_id: int) -> np.ndarray:
        """Return `device_location(device_id)` as an int64 array.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> mesh.coords(3).tolist()
        [1, 1]
        """
        return np.array(self.device_location(device_id))

    def local_device_locations(self) -> list[dict[str, int]]:
        """Return `{axis name: index}` of every coordinate that this process hosts.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> mesh.local_device_locations()[-1]
        {'x': 1, 'y': 1}
        """
        return [dict(zip(self.axis_names, c, strict=True)) for c in self.local_coordinates()]

    def unravel_index(self) -> dict[int, dict[str, int]]:
        """Return `{device id: {axis name: index}}` of every coordinate.

        >>> mesh = gdt.create_mesh([("x", 2), ("y", 2)])
        >>> mesh.unravel_index()[2]
        {'x': 1, 'y': 0}
        """
        indices = (dict(zip(self.axis_names, c, strict=True)) for c in self.coordinates())
        return dict(enumerate(indices))

    def host_mesh(self) -> Mesh:
        """Return the mesh of the same axes on virtual devices of the host.

        >>> mesh = gdt.create_mesh([("x", 2)])
        >>> mesh.host_mesh().device_type()
        'CPU'
        """
        return create_mesh(
            list(zip(self.axis_names, self.sizes, strict=True)),
            mesh_name=self.name,
            device_type="CPU",
            reduce_by=self.reduce_by,
        )

    def apart(self, axis: str) -> Mesh:
        """Return the mesh of the same devices on which each coordinate of an axis has blocks of its
        own; several blocks may then be those of one device.

        >>> gdt.create_mesh([("x", 2), ("y", 2)], device_type="CPU").apart("y").box
        (2, 1)
        """
        a = self.axis_index(axis, "Mesh.apart")
        grid = (*self.grid[:a], self.sizes[a], *self.grid[a + 1 :])
        facts = (self.axis_names, self.sizes, self.devices, self.name)
        return Mesh._of(*facts, grid, self.num_processes, self.reduce_by)

    def is_remote(self) -> bool:
        """Return whether this process hosts none of the coordinates.

        >>> gdt.create_mesh([("x", 2)]).is_remote()
        False
        """
        return not self.blocks

    def is_single_device(self) -> bool:
        """Return whether the mesh has one coordinate.

        >>> gdt.create_mesh([("x", 2)]).is_single_device()
        False
        """
        return self.size == 1

    # ---- text

    def __repr__(self) -> str:
        facts = [f"{n}={s}" for n, s in zip(self.axis_names, self.sizes, strict=True)]
        if self.reduce_by != WAYS[0]:
            facts.append(f"reduce_by={self.reduce_by!r}")
        return f"Mesh({', '.join(facts)})"

    def to_string(self) -> str:
        """Return the mesh as one line of text that `from_string` reads:
        `name|x=4,y=2|blocks|device,device,...`, where `blocks` counts the blocks of one process;
        and `|to_one` behind it, if `reduce_by` is not the default.

        >>> gdt.create_mesh([("x", 2)], device_type="CPU").to_string()
        '|x=2|1|cpu:0,cpu:1'
        """
        axes = ",".join(f"{n}={s}" for n, s in zip(self.axis_names, self.sizes, strict=True))
        way = "" if self.reduce_by == WAYS[0] else f"|{self.reduce_by}"
        return f"{self.name}|{axes}|{len(self.blocks)}|{','.join(self.devices)}{way}"

    @staticmethod
    def from_string(text: str) -> Mesh:
        """Return the mesh that `to_string` wrote as `text`; it is the same object.

        Raises MeshError for any other text.

        >>> mesh = gdt.create_mesh([("x", 2)])
        >>> gdt.Mesh.from_string(mesh.to_string()) is mesh
        True
        """
        form = re.fullmatch(r"([^|]*)\|(\w+=\d+(?:,\w+=\d+)*)\|(\d+)\|([^|]+)(?:\|(\w+))?", text)
        if form is None:
            raise error(
                MeshError,
                f"cannot read {text!r}",
                remedy="The form is name|x=4,y=2|blocks|device,device,...",
            )
        name, axes, blocks, devices, way = form.groups(WAYS[0])
        dims = [(a.split("=")[0], int(a.split("=")[1])) for a in axes.split(",")]
        listed = list(dict.fromkeys(devices.split(",")))
        total = int(blocks) * processes.current().owners(math.prod(size for _, size in dims))
        return create_mesh(dims, devices=listed, mesh_name=name, blocks=total, reduce_by=way)

    @staticmethod
    def from_device(device: str) -> Mesh:
        """Return the mesh of one coordinate on `device`.

        >>> gdt.Mesh.from_device("cpu:0")
        Mesh(device=1)
        """
        return create_mesh([("device", 1)], devices=[device])

    def __reduce__(self) -> tuple[object, ...]:
        return Mesh.from_string, (self.to_string(),)


@checked
def create_mesh(
    mesh_dims: MeshDims | None = None,
    devices: Sequence[str] | None = None,
    *,
    mesh_name: str = "",
    device_type: str | None = None,
    blocks: int | None = None,
    reduce_by: str = WAYS[0],
) -> Mesh:
    """Arrange devices in a grid with named axes.

    mesh_dims: `[(name, size), ...]` or a dict, major axis first. None: one axis `"x"` over
    `devices`.
    devices: names such as `"cpu:3"` (a virtual device of this host, one coordinate each) or
        `"cuda:0"` (a GPU, which may host several coordinates: they are split contiguously over the
        GPUs named).
        None: all GPUs if there are any, else as many virtual devices of the host as the mesh has
        coordinates.
    device_type: `"CPU"` or `"GPU"`, where `devices` leaves the choice open; or `"abstract"`: as
        many devices as the mesh has coordinates, whose arrays have types, layouts and sizes in
        memory and no values. Programs run on them to see what they would send and hold.
    blocks: the number of blocks in which an array is stored; only for virtual devices. With one
        block for each process (the default) a process computes all its coordinates in one call;
        with `mesh.size` blocks every coordinate is stored apart, and data moves between them as in
        a box of GPUs.
    reduce_by: how arrays of the mesh are all-reduced. `"all_reduce"`: by one collective, whose way
        NCCL chooses by the topology. `"to_one"`: by a reduction to the first device, and a
        broadcast from there. `"hierarchical"`: over several mesh axes, by a reduce-scatter along
        the last one (the devices of a host), all-reduces of the shares along the others, and an
        all-gather. Results differ by rounding alone.

    Where several processes run the program (`gdt.distributed`), all of them make the mesh, and each
    owns the same number of coordinates: the first ones, row-major, are those of process 0. A mesh
    of one coordinate belongs to each process by itself.

    Raises MeshError for names or sizes that do not fit, DeviceError for devices that do not exist.
    Follows `tf.experimental.dtensor.create_mesh`.

    >>> gdt.create_mesh([("batch", 8)])
    Mesh(batch=8)
    """
    op = "create_mesh"
    device_kind = device_kinds.kind_of_type(device_type)
    if mesh_dims is None:
        listed = (
            tuple(devices) if devices is not None else device_kinds.default_devices(device_kind, 1)
        )
        dims = [("x", len(listed))]
    else:
        dims = checked_dims(mesh_dims)
    names, sizes = tuple(n for n, _ in dims), tuple(s for _, s in dims)
    size = math.prod(sizes)
    if size > LARGEST:
        raise error(MeshError, f"{size:,} coordinates are more than {LARGEST:,}")
    if not isinstance(mesh_name, str) or "|" in mesh_name:
        raise error(MeshError, f"mesh_name is {mesh_name!r}; it is a string without '|'")
    listed = device_kinds.devices_of_mesh(devices, device_kind, sizes, op)
    if reduce_by not in WAYS:
        remedy = f"It is one of {', '.join(map(repr, WAYS))}."
        raise error(MeshError, op, f"reduce_by is {reduce_by!r}", remedy=remedy)
    virtual, is_abstract = (listed[0].startswith(kind) for kind in ("cpu", "abstract"))
    if not (virtual or is_abstract) and blocks is not None and blocks != len(listed):
        raise error(MeshError, op, f"blocks={blocks}, but {len(listed)} GPU(s) hold one block each")
    owners = size if is_abstract else processes.current().owners(size)
    count = len(listed) if not virtual else owners if blocks is None else blocks
    check_owners(sizes, count, owners, op)
    grid = block_grid(sizes, count, op)
    hosted = size // len(listed)
    of_coordinates = tuple(listed[i // hosted] for i in range(size))
    return Mesh._of(names, sizes, of_coordinates, mesh_name, grid, owners, reduce_by)


def mesh_texts(meshes: Sequence[Mesh]) -> list[str]:
    """Return a text for each mesh: its axes, and its name, blocks and devices where meshes of the
    same axes differ in them."""
    facts = [
        (f"name={m.name!r}", f"blocks={len(m.all_blocks)}", f"devices={', '.join(m.devices)}")
        for m in meshes
    ]
    texts = []
    for mesh, own in zip(meshes, facts, strict=True):
        alike = [f for m, f in zip(meshes, facts, strict=True) if repr(m) == repr(mesh)]
        differing = [fact for i, fact in enumerate(own) if any(f[i] != fact for f in alike)]
        texts.append(", ".join([repr(mesh), *differing]))
    return texts


def checked_mesh(mesh: object, op: str) -> Mesh:
    """Return `mesh`, or raise MeshError if it is no Mesh."""
    if not isinstance(mesh, Mesh):
        raise error(
            MeshError, op, f"{mesh!r} is not a Mesh", remedy="Make one with gdt.create_mesh."
        )
    return mesh
