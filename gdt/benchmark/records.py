"""A run of benchmarks, read from pytest-benchmark's JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gdt.benchmark.turns import Median
from gdt.errors import BenchmarkError, error

COMMAND = "pytest ... --benchmark-json RUN.json"


@dataclass(frozen=True)
class Record:
    """One benchmark: its workload, its devices, and its times in seconds.

    kind, workload, devices, ...: as `gdt.benchmark.measure` records them; a benchmark that was not
    measured with it has the kind `""`. sent_bytes: the bytes that all devices send in one call.
    predicted: the seconds of a call that were predicted.
    ratio: of the times on one device to the times of this, measured in turns; 1 on one device, and
    None where they were not.
    """

    name: str
    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float
    rounds: int
    kind: str = ""
    workload: str = ""
    devices: int = 1
    device_type: str = "CPU"
    blocks: int = 1
    sent_bytes: int = 0
    flops: float | None = None
    memory_bytes: float | None = None
    predicted: float | None = None
    ratio: Median | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def quartiles(self) -> Median:
        """The median with the quartiles below and above it."""
        return Median(self.lower_quartile, self.median, self.upper_quartile)

    @property
    def spread(self) -> float:
        """The interquartile range as a fraction of the median."""
        return (self.upper_quartile - self.lower_quartile) / self.median

    @property
    def apart(self) -> bool:
        """Whether every device has its own memory."""
        return 1 < self.devices == self.blocks

    @property
    def hardware(self) -> int:
        """The number of physical devices: the host counts as one."""
        return self.blocks if self.device_type == "GPU" else 1

    @property
    def place(self) -> str:
        """The type of devices, and whether they share memory, as text."""
        unit = "block" if self.device_type == "CPU" else "GPU"
        memory_units = f"one {unit}" if self.blocks == 1 else f"{self.blocks} {unit}s"
        memory = f"one {unit} per device" if self.apart else f"devices share {memory_units}"
        return f"{self.device_type}, {memory}"


@dataclass(frozen=True)
class BenchmarkRun:
    """All benchmarks of one run, with its machine and date, and the commit of the benchmarks, empty
    where they are in no repository. `machine["gdt"]` has gdt's version and commit."""

    path: Path
    machine: Mapping[str, str]
    commit: str
    date: str
    records: tuple[Record, ...]

    def of(self, kind: str) -> list[Record]:
        """Return the benchmarks of a kind."""
        return [r for r in self.records if r.kind == kind]


def read(path: str | Path) -> BenchmarkRun:
    """Read the run that `pytest --benchmark-json` has written to `path`.

    Raises BenchmarkError if the file is missing, damaged, of another format, or empty.
    """
    path = Path(path)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as e:
        remedy = f"Write it with: {COMMAND}"
        raise error(BenchmarkError, "read", f"no file {path}", remedy=remedy) from e
    except (OSError, ValueError) as e:
        raise _damaged(path, f"cannot be read as JSON: {e}") from e
    if not isinstance(content, dict) or not isinstance(content.get("benchmarks"), list):
        raise _damaged(path, "is not of pytest-benchmark: it has no list of benchmarks")
    if not content["benchmarks"]:
        remedy = "Look at what pytest said: all were skipped, or failed."
        raise error(BenchmarkError, "read", f"{path} holds no benchmark", remedy=remedy)
    commit = _dict(content.get("commit_info"))
    identity = str(commit.get("id") or "")[:12]
    if identity in ("unversioned", "unknown"):
        identity = ""
    return BenchmarkRun(
        path,
        _machine(_dict(content.get("machine_info"))),
        identity + (" with changes" if identity and commit.get("dirty") else ""),
        str(content.get("datetime") or "unknown")[:16].replace("T", " "),
        tuple(_record(path, entry) for entry in content["benchmarks"]),
    )


def _damaged(path: Path, problem: str) -> BenchmarkError:
    return error(BenchmarkError, "read", f"{path} {problem}", remedy=f"Write it with: {COMMAND}")


def _dict(value: object) -> dict[str, Any]:
    """Return `value` if it is a dict, else an empty one."""
    return value if isinstance(value, dict) else {}


def _machine(info: dict[str, Any]) -> dict[str, str]:
    """Return the properties that gdt's plugin recorded, or those of pytest-benchmark itself."""
    properties = _dict(info.get("gdt")) or {
        "cpu": _dict(info.get("cpu")).get("brand_raw", info.get("processor", "unknown")),
        "python": info.get("python_version", "unknown"),
    }
    return {name: str(value) for name, value in properties.items()}


def _record(path: Path, entry: object) -> Record:
    """Return one benchmark of the file; raise BenchmarkError if it is damaged."""
    entry = _dict(entry)
    name = entry.get("fullname") or entry.get("name")
    if not name:
        raise _damaged(path, "is damaged: a benchmark has no name")
    stats, info = _dict(entry.get("stats")), _dict(entry.get("extra_info"))
    times = {}
    for key in ("min", "q1", "median", "q3"):
        value = stats.get(key)
        if not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
            raise _damaged(path, f"is damaged: {key} of {name} is {value!r}, not a time")
        times[key] = float(value)
    fields = {
        key: _checked(path, name, key, types, info[key])
        for key, types in _FIELDS.items()
        if info.get(key) is not None
    }
    rounds = _checked(path, name, "rounds", (int,), stats.get("rounds"))
    quartiles = times["q1"], times["median"], times["q3"]
    ratio = _ratio(path, name, info.get("in_turns"))
    if ratio is None and fields.get("devices", 1) == 1:
        ratio = Median(1.0, 1.0, 1.0)
    return Record(str(name), times["min"], *quartiles, rounds, **fields, ratio=ratio, info=info)


def _ratio(path: Path, name: str, turns: object) -> Median | None:
    """Return the ratio that was measured in turns; None if it was not."""
    if turns is None:
        return None
    values = [_dict(turns).get(key) for key in Median._fields]
    low, value, high = (_checked(path, name, "in_turns", (float,), v, 0.0) for v in values)
    return Median(low, value, high)


_FIELDS: dict[str, tuple[type, ...]] = {  # fields of a Record in `extra_info`, and their types
    "kind": (str,),
    "workload": (str,),
    "devices": (int,),
    "device_type": (str,),
    "blocks": (int,),
    "sent_bytes": (int,),
    "flops": (int, float),
    "memory_bytes": (int, float),
    "predicted": (int, float),
}


def _checked(
    path: Path, name: str, key: str, types: tuple[type, ...], value: Any, least: float = 1
) -> Any:
    """Return `value`, or raise BenchmarkError if its type or range is wrong."""
    least = 0 if key in ("sent_bytes", "predicted") else least
    if type(value) not in types or (types != (str,) and not least <= value < math.inf):
        raise _damaged(path, f"is damaged: {key} of {name} is {value!r}")
    return value
