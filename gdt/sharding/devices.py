"""Device names: `cpu:i`, a virtual device of this host, `cuda:i`, a GPU, and registered kinds."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from gdt.errors import DeviceError, MeshError, error
from gdt.sharding import processes


def kind_of_type(device_type: str | None, op: str) -> str | None:
    """`"cpu"` or `"cuda"` for TF's `"CPU"` and `"GPU"` in any case; None for None."""
    if device_type is None:
        return None
    kinds = {"cpu": "cpu", "gpu": "cuda", "cuda": "cuda"}
    if device_type.lower() not in kinds:
        raise error(
            DeviceError, op, f"unknown device type {device_type!r}", remedy="Use 'CPU' or 'GPU'."
        )
    return kinds[device_type.lower()]


DEVICE_COUNTS: dict[str, Callable[[], int]] = {}
"""How many devices of a kind this process can use, by kind; `gdt.backend` fills it. Of virtual
devices (`cpu`) there are as many as are named."""

WHY_MISSING: dict[str, Callable[[], tuple[str, str]]] = {}
"""By kind: why this process can use no device of it, and what to do about that."""


def default_devices(kind: str | None, size: int) -> tuple[str, ...]:
    """All GPUs of all processes where there are some (or were asked for), of a process by itself no
    more than `size`; else `size` virtual devices."""
    if kind != "cpu" and DEVICE_COUNTS["cuda"]():
        count = processes.current().count
        names = tuple(name for p in range(count) for name in own_gpus(p))
        return names if count > 1 else names[:size]
    if kind == "cuda":
        problem, remedy = WHY_MISSING["cuda"]()
        raise error(DeviceError, "create_mesh", problem, remedy=remedy)
    return tuple(f"cpu:{i}" for i in range(size))


def own_gpus(process: int) -> tuple[str, ...]:
    """The GPUs that a process uses: its share of those of its host, or all that it can see where
    these cannot be shared equally (a launcher may show each process one of its own)."""
    place, together = processes.current().place_on_host(process)
    visible = DEVICE_COUNTS["cuda"]()
    share = visible if visible % together else visible // together
    first = 0 if visible % together else place * share
    return tuple(f"cuda:{i}" for i in range(first, first + share))


def own_device() -> str:
    """The first device of this process: a GPU if it has one."""
    return next(iter(own_gpus(processes.current().index)), "cpu:0")


def checked_devices(devices: Sequence[str], kind: str | None, op: str) -> tuple[str, ...]:
    """The names in their short form, or an error that names the one that does not exist."""
    if isinstance(devices, str) or not devices:
        raise error(
            DeviceError, op, f"devices is {devices!r}", remedy='Give a list, such as ["cpu:0"].'
        )
    names = tuple(_checked_device(d, op) for d in devices)
    repeated = sorted({d for d in names if names.count(d) > 1})
    if repeated:
        raise error(
            MeshError, op, f"device {repeated[0]!r} is named {names.count(repeated[0])} times"
        )
    kinds = {d.split(":")[0] for d in names}
    if len(kinds) > 1:
        raise error(
            MeshError,
            op,
            "one mesh has devices of one kind",
            operands={"devices": ", ".join(names)},
            remedy="Make a mesh of each kind: gdt.relayout moves arrays from one to the other.",
        )
    if kind is not None and kinds != {kind}:
        raise error(DeviceError, op, f"devices {', '.join(names)} are not of device_type {kind!r}")
    return names


def _checked_device(device: object, op: str) -> str:
    form = re.fullmatch(r"([a-z]+):(\d+)", device.lower()) if isinstance(device, str) else None
    kind = form.group(1).replace("gpu", "cuda") if form is not None else ""
    if form is None or kind not in ("cpu", *DEVICE_COUNTS):
        raise error(
            DeviceError,
            op,
            f"{device!r} does not name a device",
            remedy="Names are 'cpu:0', 'cuda:0', ...",
        )
    index = int(form.group(2))
    if kind != "cpu" and index >= DEVICE_COUNTS[kind]():
        raise _not_there(device, kind, op)
    return f"{kind}:{index}"


def _not_there(device: object, kind: str, op: str) -> DeviceError:
    count = DEVICE_COUNTS[kind]()
    problem = f"device {device!r} does not exist: {count} device(s) found"
    remedy = f"There are {kind}:0 to {kind}:{count - 1}."
    if not count:
        why, remedy = WHY_MISSING[kind]() if kind in WHY_MISSING else ("", "")
        problem += f"; {why}" if why else ""
    remedy += " Use 'cpu:0', 'cpu:1', ... for virtual devices of this host."
    return error(DeviceError, op, problem, remedy=remedy.strip())
