"""The namespace of the array API standard: names, dtypes, devices, and the default mesh."""

from __future__ import annotations

import importlib
import inspect
import mmap
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.registry import ALIASES, FUNCTIONS
from gdt.errors import ArgumentError, CopyError, DtypeError, MeshError

MESH = gdt.create_mesh([("a", 2), ("b", 2)], device_type="CPU", blocks=4)
LAYOUT = gdt.Layout(["a", "b"], MESH)
X = gdt.asarray(np.arange(15.0).reshape(5, 3), layout=LAYOUT)


def test_the_namespace_of_an_array_is_gdt() -> None:
    assert X.__array_namespace__() is gdt
    assert X.__array_namespace__(api_version="2024.12") is gdt
    with pytest.raises(ValueError, match="unknown version '1999'"):
        X.__array_namespace__(api_version="1999")


def test_dtypes_and_constants_are_numpys() -> None:
    for name in ("bool", "int8", "uint64", "float16", "float32", "complex128"):
        assert getattr(gdt, name) is getattr(np, name)
    assert (gdt.pi, gdt.e, gdt.inf, gdt.newaxis) == (np.pi, np.e, np.inf, None)
    assert X.dtype == gdt.float64 and gdt.zeros(2, dtype=gdt.int8).dtype == gdt.int8


def test_aliases_are_the_functions_themselves() -> None:
    for alias, name in ALIASES.items():
        assert getattr(gdt, alias) is FUNCTIONS[name]
        assert hasattr(np, alias), f"NumPy has no {alias}"


def test_every_function_shows_its_arguments() -> None:
    for name in FUNCTIONS.keys() & vars(np).keys():
        parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
        passes_on = name in ("apply_along_axis", "fromfunction", "piecewise") or "savez" in name
        assert passes_on or not any(p.kind is p.VAR_KEYWORD for p in parameters), name


# ---------------------------------------------------------------- dtypes


FACTS = ("bits", "eps", "max", "min", "smallest_normal", "smallest_subnormal", "tiny")


@pytest.mark.parametrize("name", ["float16", "float32", "float64", "complex64"])
def test_limits_of_floating_point_dtypes(name: str) -> None:
    limits, numpys = gdt.finfo(name), np.finfo(name)
    assert [getattr(limits, f) for f in FACTS] == [float(getattr(numpys, f)) for f in FACTS]
    assert all(type(getattr(limits, f)) is float for f in FACTS[1:])
    assert limits.dtype == numpys.dtype
    assert gdt.finfo(gdt.zeros(1, dtype=name)) == limits


def test_methods_have_the_texts_of_their_functions() -> None:
    for name in ("sum", "mean", "argmax", "cumsum"):
        method, function = getattr(gdt.DistributedArray, name), getattr(gdt, name)
        assert method.__doc__ == function.__doc__, name


def test_limits_of_integers() -> None:
    for name in ("int8", "uint8", "int64", "uint64"):
        limits, numpys = gdt.iinfo(name), np.iinfo(name)
        assert (limits.bits, limits.min, limits.max) == (numpys.bits, numpys.min, numpys.max)
    with pytest.raises(DtypeError, match="float64 is no dtype of integers"):
        gdt.iinfo(X)
    with pytest.raises(DtypeError, match="int8 is no dtype of floating-point"):
        gdt.finfo("int8")


def test_kinds_of_dtypes() -> None:
    assert gdt.isdtype(X.dtype, "real floating") and not gdt.isdtype(X.dtype, "integral")
    assert gdt.isdtype("int8", ("bool", gdt.int8))
    with pytest.raises(ArgumentError, match="isdtype"):
        gdt.isdtype("int8", "whole")
    assert gdt.issubdtype(X.dtype, np.floating) and np.issubdtype(X.dtype, gdt.inexact)


def test_promotion_of_arrays_dtypes_and_numbers() -> None:
    single = gdt.ones(2, dtype="float32")
    assert gdt.result_type(single, 3.0) == np.float32
    assert gdt.result_type(single, np.float64(3)) == np.float64
    assert gdt.result_type(gdt.asarray(1, dtype="int64"), single) == np.float64
    assert gdt.promote_types(gdt.int8, "uint8") == np.int16
    assert np.result_type(single, X) == np.float64
    assert gdt.can_cast(single, X.dtype) and not np.can_cast(X, "float32")
    assert gdt.common_type(single, [1]) is np.float64
    assert gdt.min_scalar_type(gdt.asarray(300)) == np.min_scalar_type(np.asarray(300))
    assert gdt.iscomplexobj(X * 1j) and gdt.isrealobj(X) and not gdt.isscalar(X)
    with pytest.raises(ArgumentError, match="Python numbers alone"):
        gdt.result_type(1, 2.0)


def test_what_the_namespace_says_of_itself() -> None:
    info = gdt.__array_namespace_info__()
    assert info.capabilities()["boolean indexing"]
    assert info.default_device() is gdt.get_default_mesh()
    assert all(gdt.empty(1, device=d).device is d for d in info.devices())
    assert info.dtypes(kind="real floating") == {
        "float32": np.dtype("float32"), "float64": np.dtype("float64")}  # fmt: skip
    assert set(info.dtypes()) == set(np.__array_namespace_info__().dtypes())
    assert info.default_dtypes()["integral"] == np.int64


# ---------------------------------------------------------------- devices


OTHER = gdt.create_mesh([("c", 3)], device_type="CPU")


def test_a_mesh_is_the_device_of_its_arrays() -> None:
    assert X.device is MESH and X.to_device(MESH) is X
    moved = X.to_device(OTHER)
    assert moved.device is OTHER and moved.tolist() == X.tolist()
    with pytest.raises(MeshError, match="'cpu' is not a Mesh"):
        X.to_device("cpu")


@pytest.mark.parametrize(
    "create",
    [
        lambda **o: gdt.arange(3, **o),
        lambda **o: gdt.asarray([1, 2], **o),
        lambda **o: gdt.array([1, 2], "float32", **o),
        lambda **o: gdt.empty((2, 3), **o),
        lambda **o: gdt.empty_like(X, **o),
        lambda **o: gdt.eye(3, **o),
        lambda **o: gdt.from_dlpack(np.ones(2), **o),
        lambda **o: gdt.full(3, 7, **o),
        lambda **o: gdt.full((2, 3), gdt.asarray([1, 2, 3], device=OTHER), **o),
        lambda **o: gdt.full_like(X, 7, **o),
        lambda **o: gdt.identity(3, **o),
        lambda **o: gdt.linspace(0, 1, 5, **o),
        lambda **o: gdt.ones(3, **o),
        lambda **o: gdt.ones_like(X, **o),
        lambda **o: gdt.tri(3, **o),
        lambda **o: gdt.zeros(3, dtype=None, **o),
        lambda **o: gdt.zeros_like(X, shape=(7,), **o),
        lambda **o: gdt.astype(X, "int8", **o),
        lambda **o: gdt.asarray(X, **o),
    ],
)
def test_arrays_are_made_on_a_device(create: Any) -> None:
    x = create(device=OTHER)
    assert x.device is OTHER and x.layout.is_fully_replicated()


def test_a_layout_and_a_device_agree() -> None:
    assert gdt.ones((2, 3), layout=LAYOUT, device=MESH).layout is LAYOUT
    with pytest.raises(MeshError, match="of another mesh than the device"):
        gdt.ones((2, 3), layout=LAYOUT, device=OTHER)
    assert gdt.zeros_like(X, device=MESH).layout is X.layout
    assert gdt.zeros_like(X, shape=(2, 2)).layout is X.layout


def test_a_copy_that_is_not_allowed_is_an_error() -> None:
    assert gdt.asarray(X, copy=False) is X
    with pytest.raises(CopyError, match="without a copy"):
        gdt.asarray(X, dtype="int8", copy=False)
    with pytest.raises(ValueError, match="without a copy"):
        gdt.asarray(X, device=OTHER, copy=False)


@pytest.fixture
def _one_device_again() -> Iterator[None]:
    yield
    gdt.set_default_mesh(None)


@pytest.mark.usefixtures("_one_device_again")
def test_the_default_mesh_of_a_program_holds_in_every_thread() -> None:
    gdt.set_default_mesh(MESH)
    meshes = [gdt.ones(2).mesh]
    thread = threading.Thread(target=lambda: meshes.append(gdt.ones(2).mesh))
    thread.start()
    thread.join()
    assert meshes == [MESH, MESH]
    with gdt.default_mesh(OTHER):
        assert gdt.ones(2).mesh is OTHER
    gdt.set_default_mesh(None)
    assert gdt.ones(2).mesh.size == 1
    with pytest.raises(MeshError, match="3 is not a Mesh"):
        gdt.set_default_mesh(3)


def test_an_array_without_a_layout_joins_the_mesh_of_the_other_operand() -> None:
    bare = gdt.arange(3.0)
    assert bare.mesh.size == 1
    for result in (X + bare, bare + X, gdt.concat([X, bare[None]]), X[gdt.asarray([0, 2])]):
        assert result.mesh is MESH
    assert (X + bare).layout is X.layout
    gradient = gdt.grad(lambda b: gdt.sum(X * b))(bare)
    assert gradient.mesh is bare.mesh and gradient.tolist() == X.numpy().sum(0).tolist()
    with pytest.raises(MeshError, match="operands live on different meshes"):
        X + gdt.ones(3, device=OTHER)


# ---------------------------------------------------------------- what asarray takes


class WithArray:
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.arange(3, dtype=dtype)


class WithDLPack:
    def __dlpack__(self, **options: Any) -> Any:
        return np.arange(3).__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return np.arange(3).__dlpack_device__()


@pytest.mark.parametrize("make", [WithArray, WithDLPack, lambda: range(3)])
def test_asarray_takes_what_has_a_protocol(make: Any) -> None:
    for dtype in (None, "float32"):
        x = gdt.asarray(make(), dtype, layout=gdt.Layout(["a"], MESH))
        assert x.tolist() == [0, 1, 2] and x.dtype == (dtype or np.int64)


def test_asarray_takes_buffers_and_no_text() -> None:
    with mmap.mmap(-1, 16) as memory:
        memory[:3] = b"\1\2\3"
        assert gdt.asarray(memory).tolist()[:4] == [1, 2, 3, 0]
    assert gdt.asarray(memoryview(np.arange(3.0))).dtype == np.float64
    assert gdt.asarray(bytearray(b"ab")).tolist() == [97, 98]
    for value in ("text", b"bytes", object(), {1: 2}):
        with pytest.raises(DtypeError):
            gdt.asarray(value)


def test_array_copies_and_adds_axes() -> None:
    host = np.arange(3)
    x = gdt.array(host, ndmin=3)
    host[0] = 9
    assert x.shape == (1, 1, 3) and x.tolist() == [[[0, 1, 2]]]
    assert gdt.array(X).layout is X.layout


# ---------------------------------------------------------------- loading


def test_programs_of_arrays_load_no_training() -> None:
    code = "import sys, gdt; gdt.sum(gdt.ones(3) + 1); print(*sys.modules)"
    run = [sys.executable, "-c", code]
    loaded = set(subprocess.run(run, check=True, capture_output=True, text=True).stdout.split())
    assert not loaded & {"rich", "numba", *(f"gdt.{m}" for m in gdt.LOADED_ON_FIRST_USE)}


def test_models_load_what_their_methods_need() -> None:
    code = """
from gdt.nn import Dense
layer = Dense(2)
layer.compile("sgd", "mse")
layer.fit([[1.0, 2.0]], [[3.0, 4.0]], verbose=0)
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_that_are_loaded_on_first_use_are_public() -> None:
    for module, names in gdt.LOADED_ON_FIRST_USE.items():
        loaded = importlib.import_module(f"gdt.{module}")
        assert all(getattr(gdt, name) is getattr(loaded, name) for name in names), module
        if names and "." in module:
            assert sorted(loaded.__all__) == names, module
        assert {*names, *([] if "." in module else [module])} <= {*dir(gdt)}, module


def test_an_op_that_is_named_as_one_that_is_loaded_later_is_an_error() -> None:
    code = """
import gdt

@gdt.op("... -> ...")
def relu(xp, x, /):
    return x

try:
    gdt.nn
except gdt.errors.ArgumentError as problem:
    assert "gdt has a function 'relu'" in str(problem)
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)
