"""The engine with kernels: meshes on the emulated device run CUDA kernels where ops have them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import ArgumentError, CompileError, error
from gdt.kernels import Call

from .emulation import EmulatedBackend, emulated_devices
from .harness import assert_close, need_compiler

ONE, FOUR = ["emu:0"], [f"emu:{i}" for i in range(4)]


@pytest.fixture(scope="module")
def emulated() -> Iterator[EmulatedBackend]:
    need_compiler()
    with emulated_devices() as backend:
        yield backend


pytestmark = pytest.mark.usefixtures("emulated")


def mesh_of(devices: Sequence[str]) -> gdt.Mesh:
    return gdt.create_mesh([("a", 2), ("b", 2)], devices=devices)


def kernels_of(explanation: Any) -> list[str]:
    return [row.kernel.split("<")[0] for row in explanation.rows if row.kernel]


# ---------------------------------------------------------------- products


LAYOUTS = [
    (["a", None], [None, None]),
    (["a", "b"], ["b", None]),
    (["a", None], [None, "b"]),
    ([None, None], [None, ("a", "b")]),
    ([None, "b"], ["b", "a"]),
]


@pytest.mark.parametrize("devices", [ONE, FOUR], ids=["one block", "four blocks"])
@pytest.mark.parametrize("specs", LAYOUTS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_products_and_their_gradients_run_the_kernel_in_every_layout(
    specs: Any, devices: list[str], dtype: str, rng: np.random.Generator
) -> None:
    mesh = mesh_of(devices)
    values = rng.standard_normal((9, 20)).astype(dtype), rng.standard_normal((20, 7)).astype(dtype)
    x, w = (gdt.asarray(v, layout=gdt.Layout(s, mesh)) for v, s in zip(values, specs, strict=True))
    c = rng.standard_normal((9, 7)).astype(dtype)

    def product_and_gradients() -> list[gdt.DistributedArray]:
        out, pull = gdt.vjp(gdt.matmul, x, w)
        return [out, *pull(gdt.asarray(c, layout=gdt.Layout.replicated(mesh, 2)))]

    found = gdt.explain(product_and_gradients)
    out, dx, dw = (a.numpy() for a in found.value)
    (exact_x, exact_w), exact_c = (v.astype(float) for v in values), c.astype(float)
    assert_close(out, exact_x @ exact_w, dtype, 20, 4.0)
    assert_close(dx, exact_c @ exact_w.T, dtype, 7, 4.0)
    assert_close(dw, exact_x.T @ exact_c, dtype, 9, 4.0)
    assert kernels_of(found) == ["matmul_simt"] * 3


@pytest.mark.parametrize(
    ("x_shape", "w_shape"), [((2, 3, 5, 4), (3, 4, 6)), ((5, 4), (2, 4, 6)), ((4,), (3, 4, 1))]
)
def test_stacks_of_matrices_run_the_kernel(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    mesh = mesh_of(ONE)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    placed = [gdt.asarray(a, layout=gdt.Layout.replicated(mesh, a.ndim)) for a in (x, w)]
    found = gdt.explain(gdt.matmul, *placed)
    np.testing.assert_allclose(found.value.numpy(), x @ w, rtol=1e-13, atol=1e-13)
    assert kernels_of(found) == ["matmul_simt"]


@pytest.mark.parametrize(("dtype", "problem"), [("int64", "no kernel"), ("complex64", "no kernel")])
def test_a_product_that_no_kernel_takes_runs_the_body_and_says_so(dtype: str, problem: str) -> None:
    x = gdt.asarray(np.arange(6).reshape(2, 3).astype(dtype), layout=replicated(2))
    found = gdt.explain(lambda: x @ x.T)
    assert found.value.tolist() == [[5, 14], [14, 50]]
    assert found.rows[-1].kernel.startswith("body: ")
    assert problem in found.rows[-1].kernel
    assert "body: " in str(found)


def replicated(rank: int) -> gdt.Layout:
    return gdt.Layout.replicated(mesh_of(ONE), rank)


def test_an_architecture_without_a_kernel_runs_the_body(
    emulated: EmulatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = gdt.asarray(np.ones((3, 8), np.float16), layout=replicated(2))
    monkeypatch.setattr(emulated.runner, "arch", "sm_75")
    found = gdt.explain(gdt.matmul, x, x.T)
    assert "no kernel matmul_mma<half_t" in found.rows[-1].kernel
    assert "for sm_75" in found.rows[-1].kernel
    assert found.value.tolist() == [[8.0] * 3] * 3


def test_a_kernel_that_does_not_compile_is_an_error(
    emulated: EmulatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: Call) -> None:
        raise error(CompileError, call.instance.file, "does not compile: line 1")

    monkeypatch.setattr(emulated.runner, "run", fail)
    x = gdt.ones((2, 11), layout=replicated(2))
    with pytest.raises(CompileError, match=r"matmul\.cu: does not compile: line 1"):
        x @ x.T


def test_a_setting_chooses_between_the_kernel_and_the_library() -> None:
    x = gdt.ones((2, 12), "float32", layout=replicated(2))
    reasons = []
    for name in ("handwritten", "cublas", "autotune", "handwritten"):
        with gdt.matmul_backend(name):
            found = gdt.explain(lambda: x @ x.T)
        assert found.value.tolist() == [[12.0, 12.0]] * 2
        reasons.append(found.rows[-1].kernel.split("<")[0].split(" us")[0].rstrip("0123456789"))
    # On the host NumPy's product takes less time than a kernel thread by thread.
    assert reasons == [
        "matmul_simt",
        "body: matmul_backend is 'cublas'",
        "body: measured: ",
        "matmul_simt",
    ]
    with (
        pytest.raises(ArgumentError, match="matmul_backend: unknown name 'mkl'"),
        gdt.matmul_backend("mkl"),
    ):
        pass


def test_the_host_has_no_kernels() -> None:
    x = gdt.ones((2, 3), layout=gdt.Layout.replicated(gdt.create_mesh([("a", 4)]), 2))
    found = gdt.explain(lambda: x @ x.T)
    assert kernels_of(found) == []
    assert "kernel" not in str(found)
