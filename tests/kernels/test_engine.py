"""The engine with kernels: meshes on the emulated device run CUDA kernels where ops have them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.caches import Cache
from gdt.cuda import launches
from gdt.cuda.launches import transpose
from gdt.cuda.runner import KernelCall
from gdt.errors import ArgumentError, CompileError, IndexRangeError, error
from gdt.ops.products import contraction
from gdt.optim.adam import adam_step
from tests.covering import covering

from .emulation import EmulatedBackend
from .harness import assert_close
from .harness import name as name_of

ONE, FOUR = ["emu:0"], [f"emu:{i}" for i in range(4)]


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

    explanation = gdt.explain(product_and_gradients)
    out, dx, dw = (a.numpy() for a in explanation.value)
    (exact_x, exact_w), exact_c = (v.astype(float) for v in values), c.astype(float)
    assert_close(out, exact_x @ exact_w, dtype, 20, 4.0)
    assert_close(dx, exact_c @ exact_w.T, dtype, 7, 4.0)
    assert_close(dw, exact_x.T @ exact_c, dtype, 9, 4.0)
    kernel = "matmul_mma" if dtype == "float64" else "matmul_simt"
    assert kernels_of(explanation) == [kernel] * 3


@pytest.mark.parametrize(
    ("x_shape", "w_shape"), [((2, 3, 5, 4), (3, 4, 6)), ((5, 4), (2, 4, 6)), ((4,), (3, 4, 1))]
)
def test_stacks_of_matrices_run_the_kernel(
    x_shape: tuple[int, ...], w_shape: tuple[int, ...], rng: np.random.Generator
) -> None:
    mesh = mesh_of(ONE)
    x, w = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
    placed = [gdt.asarray(a, layout=gdt.Layout.replicated(mesh, a.ndim)) for a in (x, w)]
    explanation = gdt.explain(gdt.matmul, *placed)
    np.testing.assert_allclose(explanation.value.numpy(), x @ w, rtol=1e-13, atol=1e-13)
    assert kernels_of(explanation) == ["matmul_mma"]


def test_a_product_of_more_than_a_launch_takes_is_launched_in_halves(
    emulated: EmulatedBackend, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(contraction, "GRID_LIMIT", (0, 0, 2))
    monkeypatch.setattr(launches, "INT_LIMIT", 6)
    for x_shape, w_shape, count in (
        ((2, 3, 4, 5), (3, 5, 2), 4),  # stacks of one matrix and of two, twice
        ((9, 5), (5, 4), 2),  # rows
        ((2, 1, 9, 5), (1, 5, 4), 4),  # matrices, then rows
        ((1, 5), (5, 9), 2),  # columns
    ):
        values = rng.standard_normal(x_shape), rng.standard_normal(w_shape)
        x, w = (gdt.asarray(a, layout=replicated(a.ndim)) for a in values)
        for _ in range(3):  # of which the last repeats launches
            emulated.runner.ran.clear()
            product = gdt.matmul(x, w).numpy()
            assert emulated.runner.ran == {"matmul_mma": count}
            np.testing.assert_allclose(product, values[0] @ values[1], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(("dtype", "problem"), [("int64", "no kernel"), ("complex64", "no kernel")])
def test_a_product_that_no_kernel_takes_runs_the_body_and_says_so(dtype: str, problem: str) -> None:
    x = gdt.asarray(np.arange(6).reshape(2, 3).astype(dtype), layout=replicated(2))
    explanation = gdt.explain(lambda: x @ x.T)
    assert explanation.value.tolist() == [[5, 14], [14, 50]]
    assert explanation.rows[-1].kernel.startswith("body: ")
    assert problem in explanation.rows[-1].kernel
    assert "body: " in str(explanation)


def replicated(rank: int) -> gdt.Layout:
    return gdt.Layout.replicated(mesh_of(ONE), rank)


def test_an_architecture_without_a_kernel_runs_the_body(
    emulated: EmulatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = gdt.asarray(np.ones((3, 8), np.float16), layout=replicated(2))
    monkeypatch.setattr(emulated.runner, "arch", "sm_75")
    explanation = gdt.explain(gdt.matmul, x, x.T)
    assert "no kernel matmul_mma<half_t" in explanation.rows[-1].kernel
    assert "for sm_75" in explanation.rows[-1].kernel
    assert explanation.value.tolist() == [[8.0] * 3] * 3


def test_a_kernel_that_does_not_compile_is_an_error(
    emulated: EmulatedBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(call: KernelCall) -> None:
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
            explanation = gdt.explain(lambda: x @ x.T)
        assert explanation.value.tolist() == [[12.0, 12.0]] * 2
        reasons.append(
            explanation.rows[-1].kernel.split("<")[0].split(" us")[0].rstrip("0123456789")
        )
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


def test_a_setting_rounds_float32_to_tf32_where_there_are_tensor_cores(
    emulated: EmulatedBackend, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    x, w = rng.standard_normal((9, 70)).astype("f4"), rng.standard_normal((70, 12)).astype("f4")
    exact = x.astype(float) @ w.astype(float)
    product = gdt.function(gdt.matmul)

    def run(arch: str, dtype: str = "float32") -> tuple[Any, float]:
        monkeypatch.setattr(emulated.runner, "arch", arch)
        given = [gdt.asarray(a.astype(dtype), layout=replicated(2)) for a in (x, w)]
        explanation = gdt.explain(gdt.matmul, *given)
        recorded = product(*given).numpy()
        np.testing.assert_array_equal(recorded, explanation.value.numpy())
        return explanation.rows[-1].kernel, float(abs(recorded - exact).max())

    assert run("sm_80")[0].startswith("matmul_simt<float,")
    with gdt.matmul_precision("tensorfloat32"):
        kernel, distance = run("sm_80")
        assert kernel.startswith("matmul_mma<float, float,")
        # 70 products of numbers up to 4, each operand rounded to 11 bits.
        assert 1e-5 < distance < 2 * 2.0**-11 * 16 * 70**0.5
        assert run("sm_75")[0].startswith("matmul_simt<float,")
        assert run("sm_80", "float64")[0].startswith("matmul_mma<double,")
        kernel, distance = run("sm_90a")
        assert kernel.startswith("matmul_mma<float, float,") and distance > 1e-5
        monkeypatch.setattr(transpose, "OPERATIONS_OF_BYTE", 0)
        monkeypatch.setattr(transpose, "OPERATIONS_OF_LAUNCH", 0)
        x, w = x[:, :68], w[:68, :11]  # w has rows that begin anywhere
        exact = x.astype(float) @ w.astype(float)
        kernel, distance = run("sm_90a")
        assert kernel.startswith("transpose<float> matmul_wgmma<float, float,")
        given, ran = [gdt.asarray(a, layout=replicated(2)) for a in (x, w)], emulated.runner.ran
        first, prepared = gdt.matmul(*given).numpy(), emulated.runner.prepared
        ran.clear()
        assert gdt.matmul(*given).numpy().tobytes() == first.tobytes()
        assert ran["transpose"] == ran["matmul_wgmma"] == 1
        assert emulated.runner.prepared == prepared  # both launches are repeated
        assert 1e-5 < distance < 2 * 2.0**-11 * 16 * 70**0.5
    assert run("sm_86", "float64")[0].startswith("matmul_simt<double,")
    kernel, distance = run("sm_80")
    assert kernel.startswith("matmul_simt<float,")
    assert distance < 1e-5
    with (
        pytest.raises(ArgumentError, match="matmul_precision: unknown name 'bfloat16'"),
        gdt.matmul_precision("bfloat16"),
    ):
        pass


def test_the_host_has_no_kernels() -> None:
    x = gdt.ones((2, 3), layout=gdt.Layout.replicated(gdt.create_mesh([("a", 4)]), 2))
    explanation = gdt.explain(lambda: x @ x.T)
    assert kernels_of(explanation) == []
    assert "kernel" not in str(explanation)


# ---------------------------------------------------------------- the same on the host


DEVICES = pytest.mark.parametrize(
    "devices", [["emu:0"], [f"emu:{i}" for i in range(8)]], ids=["one block", "eight blocks"]
)
AXES = [("a", 4), ("b", 2)]


def compared(
    run: Callable[[gdt.Mesh], Any], devices: list[str], tolerance: float
) -> tuple[Any, Any]:
    """What `run` does on the host and on the emulated device: equal values, the same collectives,
    and no op with a kernel that ran its body."""
    host, emulated = (
        gdt.explain(run, gdt.create_mesh(AXES, **how)) for how in ({}, {"devices": devices})
    )
    for want, got in zip(
        *(gdt.autodiff.tape.flatten(e.value)[0] for e in (host, emulated)), strict=True
    ):
        assert got.type.dtype == want.type.dtype
        np.testing.assert_allclose(got.numpy(), want.numpy(), rtol=tolerance, atol=tolerance)
    assert emulated.collectives == host.collectives
    assert [row for row in emulated.rows if row.kernel.startswith("body")] == []
    return host, emulated


SPLITS = [["a", None], [None, "b"], ["a", "b"], [("a", "b"), None]]


@DEVICES
@pytest.mark.parametrize("case", covering(rows=[16, 13, 3], split=SPLITS), ids=name_of)
def test_batch_norm_and_its_gradients_run_kernels(
    case: dict[str, Any], devices: list[str], rng: np.random.Generator
) -> None:
    rows, split = case["rows"], case["split"]
    x, scale, offset = rng.standard_normal((rows, 6)) * 2 + 5, *rng.standard_normal((2, 6))

    def run(mesh: gdt.Mesh) -> Any:
        layouts = [gdt.Layout(s, mesh) for s in (split, split[1:], split[1:])]
        operands = [
            gdt.asarray(v, layout=w) for v, w in zip((x, scale, offset), layouts, strict=True)
        ]

        def loss(*operands: gdt.DistributedArray) -> gdt.DistributedArray:
            y = gdt.batch_norm(*operands)[0]
            return gdt.sum(y * y * y)

        return gdt.batch_norm(*operands), gdt.grad(loss, argnums=(0, 1, 2))(*operands)

    # Cubes of up to 4 deviations, summed over the rows, are a few hundreds.
    _, explanation = compared(run, devices, 500 * 2.0**-52 * rows)
    used = {row.op for row in explanation.rows if row.kernel}
    assert used >= {"moments", "normalize", "batch_norm_sums", "batch_norm_gradient"}


def test_batch_norm_of_images_runs_kernels(rng: np.random.Generator) -> None:
    x = rng.standard_normal((4, 3, 5, 2)).astype("f4")

    def run(mesh: gdt.Mesh) -> Any:
        given = gdt.asarray(x, layout=gdt.Layout(["a", None, None, None], mesh))

        def loss(x: gdt.DistributedArray) -> gdt.DistributedArray:
            return gdt.sum(gdt.batch_norm(x, 2.0, axes=(0, 2, 3))[0] ** 3)

        return gdt.grad(loss)(given)

    # Four ulps of what a gradient of cubes of up to 8 can be.
    compared(run, ["emu:0"], 4 * 2.0**-23 * 3 * 64)


def test_what_batch_norms_kernels_do_not_take_runs_the_body(rng: np.random.Generator) -> None:
    x = gdt.asarray(rng.standard_normal((2, 3, 4)), layout=replicated(3))
    explanation = gdt.explain(gdt.moments, x, axes=1)
    assert explanation.rows[-1].kernel == (
        "body: moments: axes [0, 2] of statistics are not neighbours"
    )
    np.testing.assert_allclose(explanation.value[0].numpy(), x.numpy().mean(1), rtol=1e-14)


OPTIONS: list[dict[str, Any]] = [{}, {"label_smoothing": 0.1}, {"ignore_index": 1}]


@DEVICES
@pytest.mark.parametrize(
    "case",
    covering(sizes=[(16, 6), (13, 7), (3, 2)], split=SPLITS, options=OPTIONS),
    ids=name_of,
)
def test_cross_entropy_and_its_gradients_run_kernels(
    case: dict[str, Any], devices: list[str], rng: np.random.Generator
) -> None:
    (rows, classes), split, options = case.values()
    logits, labels = rng.standard_normal((rows, classes)) * 2, rng.integers(0, classes, rows)

    def run(mesh: gdt.Mesh) -> Any:
        x = gdt.asarray(logits, layout=gdt.Layout(split, mesh))
        y = gdt.asarray(labels.astype("u1"), layout=gdt.Layout(split[:1], mesh))

        def loss(x: gdt.DistributedArray) -> gdt.DistributedArray:
            each = gdt.sparse_softmax_cross_entropy_with_logits(y, x, **options)
            return gdt.sum(each * each)

        curvature = gdt.grad(lambda x: gdt.sum(gdt.grad(loss)(x) ** 3))(x)
        each = gdt.sparse_softmax_cross_entropy_with_logits(y, x, **options)
        return each, gdt.grad(loss)(x), curvature

    # Losses are below 10; their squares' derivatives, cubed and derived, below 10,000.
    _, explanation = compared(run, devices, 1e4 * 2.0**-52 * classes)
    assert {"softmax_ce", "softmax_ce_parts"} & set(kernels_of(explanation))
    assert "softmax_ce_gradient" in kernels_of(explanation)


@DEVICES
@pytest.mark.parametrize("split", [[None, "a", None], ["b", None, "a"], [("a", "b"), None, None]])
@pytest.mark.parametrize(
    ("label", "shown"),
    [
        (4, "4"),
        (-1, "-1"),
        (2**32, "2147483647 or more"),
        (-(2**40), "-2147483647 or less"),
    ],
)
def test_a_label_out_of_range_is_raised_at_the_next_read_with_its_index(
    split: list[Any], label: int, shown: str, devices: list[str], rng: np.random.Generator
) -> None:
    mesh = gdt.create_mesh(AXES, devices=devices)
    labels = rng.integers(0, 4, (2, 5))
    labels[1, 3] = label
    x = gdt.asarray(rng.standard_normal((2, 5, 4)), layout=gdt.Layout(split, mesh))
    y = gdt.asarray(labels, layout=gdt.Layout(split[:2], mesh))
    loss = gdt.sparse_softmax_cross_entropy_with_logits(y, x)
    with pytest.raises(IndexRangeError, match=rf"label {shown} at \[1, 3\] is outside 0\.\.3"):
        loss.numpy()
    after = loss.numpy()  # raised once
    assert np.argwhere(np.isnan(after)).tolist() == [[1, 3]]


def test_padding_labels_that_are_no_class_are_no_error() -> None:
    # Nine rows over eight coordinates are 2|2|2|2|1|0|0|0: shards without rows hold ones.
    mesh = gdt.create_mesh([("a", 8)], devices=["emu:0"])
    x = gdt.zeros((9, 1), layout=gdt.Layout(["a", None], mesh))
    y = gdt.zeros((9,), "int32", layout=gdt.Layout(["a"], mesh))[:9]
    assert gdt.sparse_softmax_cross_entropy_with_logits(y, x).tolist() == [0.0] * 9


def test_half_precision_on_hopper_runs_wgmma_where_the_accelerator_can_copy(
    emulated: EmulatedBackend, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(emulated.runner, "arch", "sm_90a")
    cases = (10, 32, 24, "wgmma"), (10, 32, 23, "mma"), (64, 31, 23, "mma"), (64, 31, 65, "wgmma")
    # Rows of memory have 24, 23 and 65 elements, or 31; those that are used 64 times are aligned.
    for rows, inner, columns, kernel in cases:
        values = rng.standard_normal((rows, inner)), rng.standard_normal((inner, columns))
        x, w = (gdt.asarray(v.astype(np.float16), layout=replicated(2)) for v in values)
        explanation = gdt.explain(gdt.matmul, x, w)
        exact = x.numpy().astype(float) @ w.numpy().astype(float)
        assert_close(explanation.value.numpy(), exact, "float16", 32, 4.0)
        assert kernels_of(explanation) == [f"matmul_{kernel}"]
        explanation = gdt.explain(gdt.matmul, w.T, x.T)
        assert_close(explanation.value.numpy(), exact.T, "float16", 32, 4.0)
        assert kernels_of(explanation) == [f"matmul_{kernel}"]


# ---------------------------------------------------------------- updates


OPTIMIZERS: dict[str, Callable[[], gdt.optim.Optimizer]] = {
    "sgd": lambda: gdt.optim.SGD(0.1),
    "momentum": lambda: gdt.optim.SGD(0.1, 0.9),
    "nesterov": lambda: gdt.optim.SGD(0.1, 0.9, nesterov=True),
    "adam": lambda: gdt.optim.Adam(0.01),
    "adamw": lambda: gdt.optim.AdamW(0.01, 0.1),
}


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_one_launch_updates_all_parameters_to_the_bit(
    name: str,
    dtype: str,
    devices: list[str],
    emulated: EmulatedBackend,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(adam_step, "multi_tensor_plans", Cache(1 << 20))  # those of AdamW too

    def run(mesh: gdt.Mesh) -> dict[str, np.ndarray]:
        rng = np.random.default_rng(0)
        splits: dict[str, Any] = {
            "w": (["a", "b"], (7, 6)),
            "v": ([None], (9,)),
            "u": ([("b", "a"), None], (5, 4)),
            "none": ([None], (0,)),
        }
        parameters = {
            n: gdt.asarray(rng.standard_normal(shape).astype(dtype), layout=gdt.Layout(s, mesh))
            for n, (s, shape) in splits.items()
        }
        optimizer = OPTIMIZERS[name]()
        for step in range(4):
            gradients = {
                n: gdt.asarray(rng.standard_normal(p.shape).astype(dtype), layout=p.layout)
                for n, p in parameters.items()
            }
            if step == 2:  # under a second name a parameter is not overwritten
                other, before = parameters["w"], parameters["w"].numpy().copy()
            optimizer.update(parameters, gradients)
        assert (other.numpy() == before).all()
        return {n: p.numpy() for n, p in parameters.items()}

    want = run(gdt.create_mesh(AXES))
    emulated.runner.ran.clear()
    got = run(gdt.create_mesh(AXES, devices=devices))
    for n, value in want.items():
        np.testing.assert_array_equal(got[n], value)
    # The first step makes the plans of the three parameters that have elements, one by one.
    assert sum(emulated.runner.ran.values()) == len(devices) * (3 + 3)


def test_an_update_that_no_kernel_takes_runs_the_body() -> None:
    parameters = {
        "w": gdt.ones((4,), "float16", layout=replicated(1)),
        "v": gdt.ones(3, layout=replicated(1)),
    }
    for expected in (0.5, 0.0):
        gradients = {n: gdt.ones_like(p) for n, p in parameters.items()}
        gdt.optim.SGD(0.5).update(parameters, gradients)
        assert parameters["w"].tolist() == [expected] * 4
        assert parameters["v"].tolist() == [expected] * 3


# ---------------------------------------------------------------- random numbers and reductions


@DEVICES
@pytest.mark.parametrize("split", [*SPLITS, [None, None]], ids=str)
def test_random_numbers_are_those_of_the_host_to_the_bit(
    split: list[Any], devices: list[str]
) -> None:
    random, floats = gdt.random, ("float16", "float32", "float64")

    def run(mesh: gdt.Mesh) -> list[gdt.DistributedArray]:
        layout, shape = gdt.Layout(split, mesh), (9, 7)
        random.seed(4)
        return [
            *(f(shape, dtype=d, key=3, layout=layout)
              for d in floats for f in (random.uniform, random.normal, random.truncated_normal)),
            *(random.integers(0, 2, shape, d, key=6, layout=layout)
              for d in ("bool", "int8", "int32", "int64", "uint64")),
            random.integers(-5, 2**40, shape, key=6, layout=layout),
            random.integers(0, 2**64, shape, "uint64", key=6, layout=layout),
            random.bernoulli(shape, 0.3, key=2, layout=layout),
            random.normal(shape, layout=layout),
        ]  # fmt: skip

    host, explanation = (
        gdt.explain(run, gdt.create_mesh(AXES, **how)) for how in ({}, {"devices": devices})
    )
    for want, got in zip(host.value, explanation.value, strict=True):
        assert got.dtype == want.dtype
        np.testing.assert_array_equal(got.numpy(), want.numpy())
    assert len(kernels_of(explanation)) == len(explanation.value)
    assert all(name.startswith("random_") for name in kernels_of(explanation))


REDUCTIONS = ["sum", "mean", "max", "min", "argmax", "argmin"]


@DEVICES
@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int32", "int64"])
@pytest.mark.parametrize("split", [["a", None, "b"], [None, "a", None]], ids=str)
def test_reductions_run_kernels(
    split: list[Any], dtype: str, devices: list[str], rng: np.random.Generator
) -> None:
    values = (rng.standard_normal((9, 5, 6)) * 8).astype(dtype)

    def run(mesh: gdt.Mesh) -> list[gdt.DistributedArray]:
        x = gdt.asarray(values, layout=gdt.Layout(split, mesh))
        names = REDUCTIONS if dtype.startswith("f") else [n for n in REDUCTIONS if n != "mean"]
        made = [getattr(gdt, n)(x, axis=a, keepdims=a == 1) for n in names for a in (0, 1, 2)]
        made += [getattr(gdt, n)(x, axis=(1, 2)) for n in names if not n.startswith("arg")]
        return [*made, gdt.sum(x), gdt.max(x)]

    # Sums of up to 270 elements of up to 32, in another order.
    epsilon = {"float16": 2.0**-10, "float32": 2.0**-23}.get(dtype, 2.0**-52)
    compared(run, devices, 0 if dtype.startswith("int") else epsilon * 32 * 17)


@pytest.mark.parametrize(
    ("reduce", "reason"),
    [
        (lambda x: gdt.sum(x, axis=(0, 2)), "axes [0, 2] are not neighbours"),
        (lambda x: gdt.sum(x, axis=0, dtype="float32"), "no kernel adds float64 up as float32"),
        (lambda x: gdt.sum(x > 0, axis=0), "no kernel adds bool up as None"),
        (gdt.argmax, "no kernel finds the place among axes [-3, -2, -1]"),
        (lambda x: gdt.max(gdt.astype(x, "int16")), "no kernel takes int16"),
    ],
)
def test_reductions_that_no_kernel_takes_run_the_body(
    reduce: Callable[[Any], Any], reason: str, rng: np.random.Generator
) -> None:
    values = rng.standard_normal((3, 4, 2))
    explanation, host = (
        gdt.explain(reduce, gdt.asarray(values, layout=layout))
        for layout in (replicated(3), gdt.Layout.replicated(gdt.create_mesh([("x", 1)]), 3))
    )
    assert explanation.rows[-1].kernel.startswith("body: ")
    assert explanation.rows[-1].kernel.endswith(reason)
    np.testing.assert_array_equal(explanation.value.numpy(), host.value.numpy())
