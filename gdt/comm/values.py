"""Values of the host as bytes: numbers, text, arrays of NumPy and containers of them, as JSON.

Nothing is pickled, since what unpickles the bytes of a stranger runs his program.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from gdt.errors import ArgumentError, error
from gdt.sharding.dtypes import kind_of, name_of

# In JSON every other value is an object with one key, which says how the value is read.
READERS: dict[str, Callable[[Any], Any]] = {
    "tuple": lambda items: tuple(map(_value, items)),
    "dict": lambda items: {_value(key): _value(value) for key, value in items},
    "complex": lambda parts: complex(*parts),
    "bytes": base64.b64decode,
    "path": Path,
    "dtype": np.dtype,
    "array": lambda facts: _array(*facts),
    "number": lambda facts: _array(*facts)[()],
}


def encoded(value: Any, op: str = "broadcast") -> np.ndarray:
    """A value as bytes; ArgumentError, in the name of `op`, if it holds anything else than None,
    numbers, text, bytes, paths, dtypes and arrays of NumPy in lists, tuples and dicts."""
    try:
        return np.frombuffer(json.dumps(_tagged(value, op)).encode(), np.uint8)
    except RecursionError:
        raise _refused(op, "a container that holds itself") from None


def decoded(data: Any) -> Any:
    """The value of bytes that `encoded` has made."""
    return _value(json.loads(bytes(data)))


def _tagged(value: Any, op: str) -> Any:
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [_tagged(item, op) for item in value]
    if kind is tuple:
        return {"tuple": [_tagged(item, op) for item in value]}
    if kind is dict:
        return {"dict": [[_tagged(k, op), _tagged(v, op)] for k, v in value.items()]}
    if kind is complex:
        return {"complex": [value.real, value.imag]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, PurePath):
        return {"path": str(value)}
    if isinstance(value, np.dtype) and kind_of(value) not in "OV":
        return {"dtype": name_of(value)}
    if (kind is np.ndarray or isinstance(value, np.generic)) and kind_of(value.dtype) not in "OV":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        tag = "array" if kind is np.ndarray else "number"
        return {tag: [name_of(value.dtype), list(value.shape), data]}
    raise _refused(op, f"a {kind.__name__}")


def _refused(op: str, what: str) -> ArgumentError:
    return error(
        ArgumentError,
        op,
        f"{what} cannot be sent to other processes",
        remedy="Numbers, text, bytes, paths and NumPy arrays can, in lists, tuples and dicts.",
    )


def _value(tagged: Any) -> Any:
    if isinstance(tagged, list):
        return [_value(item) for item in tagged]
    if isinstance(tagged, dict):
        ((tag, content),) = tagged.items()
        return READERS[tag](content)
    return tagged


def _array(dtype: str, shape: list[int], data: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(data), dtype).reshape(shape).copy()
