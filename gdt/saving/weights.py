"""Weights from files of other libraries, by a map of names."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gdt.arguments import checked
from gdt.checkpoint.entries import DTYPES
from gdt.errors import ArgumentError, CheckpointError, error
from gdt.nn.module import Module
from gdt.ops.creation import asarray

Transform = Callable[[np.ndarray], np.ndarray]
Target = str | tuple[str, Transform]


@checked
def load_weights(
    model: Module,
    path: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    names: Mapping[str, Target] | None = None,
    *,
    strict: bool = True,
) -> list[str]:
    r"""Replace a model's arrays by those of safetensors files, in the model's layouts and dtypes.

    path: a file, several, or a folder of them, as Hugging Face has models.
    names: regular expressions for the whole names in the files, and what they are in the model,
        where `\1` stands for the first group; or a tuple of that and a function of the array, such
        as `np.transpose` for the weights of PyTorch's linear layers. Other names stay as they are.
    strict: whether every array of the model must be in the files, and no other.

    Returns the names of the model's arrays that were replaced. Raises CheckpointError, which lists
    every name and shape that does not fit; then nothing is changed.

    >>> import numpy as np, tempfile, safetensors.numpy
    >>> path = tempfile.mkdtemp() + "/model.safetensors"
    >>> arrays = {"h.0.fc.weight": np.ones((3, 2), "f4"), "h.0.fc.bias": np.ones(3, "f4")}
    >>> safetensors.numpy.save_file(arrays, path)
    >>> model = gdt.nn.Sequential(gdt.nn.Dense(2, 3))
    >>> gdt.load_weights(model, path, {
    ...     r"h\.(\d+)\.fc\.weight": (r"layers.\1.weight", np.transpose),
    ...     r"h\.(\d+)\.fc\.bias": r"layers.\1.bias",
    ... })
    ['layers.0.bias', 'layers.0.weight']
    """
    for pattern in names or {}:
        try:
            re.compile(pattern)
        except re.error as cause:
            problem = f"{pattern!r} is no pattern ({cause})"
            raise error(ArgumentError, problem) from None
    places, arrays, problems = model.state(), dict[str, Any](), []
    for key, reader in _entries(path):
        name, transform = _renamed(key, names or {})
        if name not in places:
            problems += [f"{key}: the model has no {name}"] if strict else []
            continue
        if name in arrays:
            problems.append(f"{key}: {name} has been given before")
            continue
        value = np.asarray(transform(reader()))
        if value.shape != places[name].shape:
            shapes = f"{list(value.shape)}, and the model's {name} is {places[name].type}"
            problems.append(f"{key}: shape {shapes}")
            continue
        value = value.astype(places[name].dtype, copy=False)
        arrays[name] = asarray(value, layout=places[name].layout)
    if strict:
        problems += [f"{name}: not in the files" for name in places if name not in arrays]
    if problems:
        what = "the files do not fit the model\n  " + "\n  ".join(problems)
        remedy = "Map names by names={pattern: name}; strict=False leaves arrays out."
        raise error(CheckpointError, what, remedy=remedy)
    model.load({**places, **arrays})
    return sorted(arrays)


def _renamed(key: str, names: Mapping[str, Target]) -> tuple[str, Transform]:
    """Return the name in the model of a name in a file, and the function of its array."""
    for pattern, target in names.items():
        match = re.fullmatch(pattern, key)
        if match:
            name, transform = target if isinstance(target, tuple) else (target, lambda x: x)
            try:
                return match.expand(name), transform
            except (re.error, IndexError) as cause:
                problem = f"{name!r} does not fit the pattern {pattern!r} ({cause})"
                raise error(ArgumentError, problem) from None
    return key, lambda x: x


def _entries(path: Any) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
    """Yield the name of every array in the files, and a function that reads it."""
    paths = [Path(path)] if isinstance(path, str | os.PathLike) else [Path(p) for p in path]
    if len(paths) == 1 and paths[0].is_dir():
        paths = sorted(paths[0].glob("*.safetensors"))
    if not paths:
        raise error(CheckpointError, f"{path} holds no safetensors file")
    for file in paths:
        header, start = _header(file)
        for name, facts in header.items():
            if name != "__metadata__":
                yield name, partial(_read, file, facts, start)


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """Return the header of a safetensors file, and where its data begin."""
    try:
        with file.open("rb") as stream:
            size = int.from_bytes(stream.read(8), "little")
            if size > file.stat().st_size:
                raise ValueError("it is cut off")
            header: dict[str, Any] = json.loads(stream.read(size))
            for name, facts in header.items():
                if name != "__metadata__":
                    _check_facts(name, **facts)
            return header, 8 + size
    except (OSError, ValueError, TypeError, AttributeError) as cause:
        problem = f"{file} is no safetensors file ({cause})"
        raise error(CheckpointError, problem) from None


def _check_facts(name: str, dtype: str, shape: Sequence[int], data_offsets: Sequence[int]) -> None:
    """Raise ValueError unless an array of this dtype and shape lies between two offsets."""
    first, last = data_offsets
    itemsize = np.dtype(DTYPES.get(dtype, "V")).itemsize
    if first < 0 or (itemsize and math.prod(shape) * itemsize != last - first):
        raise ValueError(f"{name} of {dtype} {shape} does not lie between {first} and {last}")


def _read(file: Path, facts: Mapping[str, Any], start: int) -> np.ndarray:
    """Return an array of a file, of which only what is looked at is read."""
    code, (first, last) = facts["dtype"], facts["data_offsets"]
    dtype = np.dtype(DTYPES.get(code, "V")).newbyteorder("<")
    if dtype == "V":
        raise error(CheckpointError, f"{file} holds {code}, which gdt lacks")
    if start + last > file.stat().st_size:
        raise error(CheckpointError, f"{file} is cut off")
    if first == last:  # which mmap refuses
        return np.empty(facts["shape"], dtype)
    return np.memmap(file, dtype, "r", start + first, tuple(facts["shape"]))
