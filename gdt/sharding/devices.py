"""Device names: `cpu:0` is a virtual device of this host, `cuda:0` a GPU, `abstract:0` a device
that computes no values.

The part before the colon is the device's kind. `gdt.backend` registers a kind by entering it in
`DEVICE_COUNTS`, as the tests do with a GPU that the host emulates.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence

from gdt.errors import DeviceError, MeshError, error
from gdt.sharding import processes


def kind_of_type(device_type: str | None) -> str | None:
    """Return the kind `"cpu"`, `"cuda"` or `"abstract"` of a type, TF's `"CPU"` or `"GPU"` or
    `"abstract"`, in any case; None for None."""
    if device_type is None:
        return None
    kinds = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda", "abstract": "abstract"}
    if device_type.lower() not in kinds:
        raise error(
            DeviceError,
            f"unknown device type {device_type!r}",
            remedy="Use 'CPU', 'GPU' or 'abstract'.",
        )
    return kinds[device_type.lower()]


DEVICE_COUNTS: dict[str, Callable[[], int]] = {"abstract": lambda: sys.maxsize}
"""By kind of device: a function that counts the devices that this process can use. `cpu` is not in
it, since a host has as many virtual devices as a mesh names."""

WHY_MISSING: dict[str, Callable[[], tuple[str, str]]] = {}
"""By kind of device: a function that says why this process can use none, and what to do."""


def default_devices(kind: str | None, size: int) -> tuple[str, ...]:
    """Return the devices of a mesh of `size` coordinates that names none.

    These are all GPUs of all processes where there are any and `kind` is not `"cpu"` (a process by
    itself takes no more than `size` of them), else `size` virtual devices of this host. Raises
    DeviceError where `kind` is `"cuda"` and there is no GPU.
    """
    if kind == "abstract":
        return tuple(f"abstract:{i}" for i in range(size))
    if kind != "cpu" and DEVICE_COUNTS["cuda"]():
        count = processes.current().count
        names = tuple(name for p in range(count) for name in own_gpus(p))
        return names if count > 1 else names[:size]
    if kind == "cuda":
        problem, remedy = WHY_MISSING["cuda"]()
        raise error(DeviceError, "create_mesh", problem, remedy=remedy)
    return tuple(f"cpu:{i}" for i in range(size))


def own_gpus(process: int) -> tuple[str, ...]:
    """Return the GPUs that process number `process` uses.

    The processes of a host share its GPUs equally. Where the number of visible GPUs does not divide
    by the number of processes, each uses all that it sees: its launcher shows each process GPUs of
    its own.
    """
    place, count = processes.current().place_on_host(process)
    visible = DEVICE_COUNTS["cuda"]()
    share = visible if visible % count else visible // count
    first = 0 if visible % count else place * share
    return tuple(f"cuda:{i}" for i in range(first, first + share))


def own_device() -> str:
    """Return the first GPU of this process, or `"cpu:0"` if it has none."""
    return next(iter(own_gpus(processes.current().index)), "cpu:0")


def checked_devices(devices: Sequence[str], kind: str | None, op: str) -> tuple[str, ...]:
    """Return the names of `devices` in their short form (`"cuda:0"` for `"GPU:0"`).

    Raises DeviceError for a name that is no device, for one that does not exist, and for a device
    that is not of `kind`; MeshError for a name given twice and for devices of several kinds.
    """
    if isinstance(devices, str) or not devices:
        raise error(
            DeviceError, f"devices is {devices!r}", remedy='Give a list, such as ["cpu:0"].'
        )
    names = tuple(_checked_device(d) for d in devices)
    repeated = sorted({d for d in names if names.count(d) > 1})
    if repeated:
        raise error(
            MeshError, op, f"device {repeated[0]!r} is named {names.count(repeated[0])} times"
        )
    kinds = {d.split(":")[0] for d in names}
    if len(kinds) > 1:
        raise error(
            MeshError,
            "one mesh has devices of one kind",
            operands={"devices": ", ".join(names)},
            remedy="Make a mesh of each kind: gdt.relayout moves arrays from one to the other.",
        )
    if kind is not None and kinds != {kind}:
        raise error(DeviceError, op, f"devices {', '.join(names)} are not of device_type {kind!r}")
    return names


def devices_of_mesh(
    devices: Sequence[str] | None, kind: str | None, sizes: tuple[int, ...], op: str
) -> tuple[str, ...]:
    """Return the devices of a mesh of these sizes, `devices` or the default ones.

    Raises MeshError where the mesh's coordinates do not fit them.
    """
    size = math.prod(sizes)
    listed = default_devices(kind, size) if devices is None else checked_devices(devices, kind, op)
    hosts_one = listed[0].startswith(("cpu", "abstract"))
    if (hosts_one and len(listed) != size) or size % len(listed):
        shape = f"{'x'.join(map(str, sizes))} = " if len(sizes) > 1 else ""
        raise error(
            MeshError,
            f"a mesh of {shape}{size} coordinates does not fit {len(listed)} device(s)",
            operands={"devices": ", ".join(listed)},
            remedy="Name one virtual device per coordinate, or GPUs whose number divides the mesh.",
        )
    return listed


def _checked_device(device: object) -> str:
    """Return the short form of a device's name, or raise DeviceError if there is no such device."""
    form = re.fullmatch(r"([a-z]+):(\d+)", device.lower()) if isinstance(device, str) else None
    kind = form.group(1).replace("gpu", "cuda") if form is not None else ""
    if form is None or kind not in ("cpu", *DEVICE_COUNTS):
        raise error(
            DeviceError,
            f"{device!r} does not name a device",
            remedy="Names are 'cpu:0', 'cuda:0', ...",
        )
    index = int(form.group(2))
    if kind != "cpu" and index >= DEVICE_COUNTS[kind]():
        raise _not_there(device, kind)
    return f"{kind}:{index}"


def _not_there(device: object, kind: str) -> DeviceError:
    """Return the error for a device of a known kind that does not exist."""
    count = DEVICE_COUNTS[kind]()
    problem = f"device {device!r} does not exist: {count} device(s) found"
    remedy = f"There are {kind}:0 to {kind}:{count - 1}."
    if not count:
        why, remedy = WHY_MISSING[kind]() if kind in WHY_MISSING else ("", "")
        problem += f"; {why}" if why else ""
    remedy += " Use 'cpu:0', 'cpu:1', ... for virtual devices of this host."
    return error(DeviceError, problem, remedy=remedy.strip())
