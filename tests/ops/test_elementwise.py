"""What samples do not say of element-wise functions: NumPy's protocol, promotion, ties, errors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.registry import ALIASES, FUNCTIONS
from gdt.nn.functions.activations import error_function
from gdt.testing import layouts, meshes

MESH = gdt.create_mesh([("x", 4)])
OTHER = gdt.create_mesh([("y", 2)])
SPLIT = gdt.Layout(["x"], MESH)

UFUNCS = [
    u for u in vars(np).values()
    if isinstance(u, np.ufunc) and ALIASES.get(u.__name__, u.__name__) in FUNCTIONS
    and u.nout == 1 and not u.signature
]  # fmt: skip


def test_every_name_of_numpys_protocol_exists() -> None:
    assert set(ALIASES.values()) <= set(FUNCTIONS)


@pytest.mark.parametrize("ufunc", sorted(set(UFUNCS), key=str), ids=lambda u: u.__name__)
def test_numpys_ufuncs_run_on_distributed_arrays(ufunc: np.ufunc) -> None:
    whole = not any("d" in t for t in ufunc.types)
    value = np.array([3, 5, 6]) if whole else np.array([1.5, 2.0, 3.0])
    if ufunc in (np.arcsin, np.arccos, np.arctanh):
        value = value / 4
    args = (value, value.astype(int) if ufunc is np.ldexp else value)[: ufunc.nin]
    arrays = tuple([gdt.asarray(a, layout=SPLIT) for a in args])
    for given in (arrays, (arrays[0], *args[1:]), (*args[:-1], arrays[-1])):
        out = ufunc(*given)
        assert isinstance(out, gdt.DistributedArray)
        want = ufunc(*args)
        assert out.dtype == want.dtype and out.numpy().tolist() == want.tolist()


OPERATORS = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.lt, operator.le, operator.gt, operator.ge, operator.eq, operator.ne,
]  # fmt: skip
DTYPES = ["bool", "int8", "uint8", "int32", "int64", "float16", "float32", "float64", "complex64"]


@pytest.mark.parametrize("f", OPERATORS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("dtype", DTYPES)
def test_operators_promote_as_numpys(f: Callable[..., Any], dtype: str) -> None:
    value = np.array([1, 2, 3]).astype(dtype)
    x = gdt.asarray(value, layout=SPLIT)
    # `bools ** 2` of NumPy is int8, its np.power(bools, 2) is int64.
    numpys = np.power if f is operator.pow else f
    others = [2, 2.0, True, np.float32(2), np.int8(2), np.float64(2), np.array([1, 2, 3], "int16")]
    for other in [*others, 2j] if f not in (operator.floordiv, operator.mod) else others:
        for a, b, c, d in ((x, other, value, other), (other, x, other, value)):
            try:
                want = numpys(c, d)
            except TypeError:  # no such ufunc loop, e.g. the difference of bools
                with pytest.raises(TypeError):
                    f(a, b)
                continue
            out = f(a, b)
            assert out.dtype == want.dtype, f"{dtype} with {other!r}"
            assert np.allclose(out.numpy(), want, equal_nan=True)


@pytest.mark.parametrize("f", [operator.lshift, operator.rshift, operator.and_, operator.xor])
def test_integer_operators(f: Callable[..., Any]) -> None:
    value = np.array([1, 2, 12], "int16")
    x = gdt.asarray(value, layout=SPLIT)
    assert f(x, 2).tolist() == f(value, 2).tolist() and f(x, 2).dtype == np.int16
    assert f(7, x).tolist() == f(7, value).tolist()


def test_ties_share_the_gradient() -> None:
    x, y = gdt.asarray([1.0, 2.0, 3.0]), gdt.asarray([2.0, 2.0, 2.0])
    for f, want in ((gdt.maximum, [0.0, 0.5, 1.0]), (gdt.minimum, [1.0, 0.5, 0.0])):
        gx, gy = gdt.grad(lambda p, f=f: gdt.sum(f(*p)))((x, y))
        assert gx.tolist() == want and (gx + gy).tolist() == [1, 1, 1]
    assert gdt.grad(lambda x: gdt.sum(gdt.clip(x, 1.0, 3.0)))(x).tolist() == [0.5, 1.0, 0.5]
    for zero in (gdt.relu, gdt.abs):
        assert gdt.grad(zero)(gdt.asarray(0.0)).item() == 0


@pytest.mark.parametrize("wide", ["float32", "float64", "complex64"])
def test_gradients_come_back_in_the_dtype_of_the_operand(wide: str) -> None:
    x = gdt.asarray(np.array([1, 2, 3], "float16"), layout=SPLIT)
    y = gdt.asarray(np.array([4, 5, 6], wide), layout=SPLIT)
    for f in (lambda x: x * y, lambda x: x.astype(wide) * y, lambda x: x - y, lambda x: x / y):
        g = gdt.grad(lambda x, f=f: gdt.sum(gdt.real(f(x))))(x)
        assert g.dtype == np.float16
    g = gdt.grad(lambda x: gdt.sum(x.astype(wide) * 4))(x) if wide != "complex64" else x * 0 + 4
    assert g.tolist() == [4, 4, 4]


def test_complex_gradients_follow_jax() -> None:
    z = gdt.asarray([1 + 2j, -3 + 0.5j])
    assert gdt.grad(lambda z: gdt.sum(gdt.real(z * z)))(z).tolist() == (2 * z).tolist()
    assert gdt.grad(lambda z: gdt.sum(gdt.imag(z)))(z).tolist() == [-1j, -1j]
    unit = (gdt.conj(z) / gdt.abs(z)).numpy()
    assert np.allclose(gdt.grad(lambda z: gdt.sum(gdt.abs(z)))(z).numpy(), unit)
    assert gdt.grad(lambda z: gdt.sum(gdt.real(gdt.conj(z))))(z).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_expm1_of_complex_infinities_is_what_the_standard_asks_for(dtype: str) -> None:
    inf, nan = math.inf, math.nan
    special = [inf, complex(inf, inf), complex(inf, nan), complex(-inf, inf), complex(-inf, nan)]
    x = np.array([*special, complex(nan, 0), 800, complex(0.5, inf), 2 - 3j, 1e-9j], dtype)
    with np.errstate(all="ignore"):
        got = gdt.expm1(gdt.asarray(x, layout=SPLIT))
        want = np.expm1(x)
    want[:7] = [inf, complex(inf, nan), complex(inf, nan), -1, -1, complex(nan, 0), inf]
    np.testing.assert_array_equal(got.numpy().real, want.real)
    np.testing.assert_array_equal(got.numpy().imag, want.imag)
    assert got.dtype == dtype


def test_hypot_has_a_gradient_at_zero() -> None:
    x, y = gdt.asarray([0.0, 3.0]), gdt.asarray([0.0, 4.0])
    gradients = gdt.grad(lambda x, y: gdt.sum(gdt.hypot(x, y)), (0, 1))(x, y)
    np.testing.assert_allclose([g.numpy() for g in gradients], [[0.0, 0.6], [0.0, 0.8]])


def test_power_has_gradients_at_zero() -> None:
    x, y = gdt.asarray([0.0, 0.0, 2.0]), gdt.asarray([0.0, 2.0, 3.0])
    gx, gy = gdt.grad(lambda p: gdt.sum(p[0] ** p[1]))((x, y))
    assert gx.tolist() == [0, 0, 12] and np.allclose(gy.numpy(), [0, 0, 8 * math.log(2)])
    assert gdt.grad(lambda x: gdt.sum(x**0))(x).tolist() == [0, 0, 0]
    assert gdt.grad(lambda y: gdt.sum(0.0**y))(gdt.asarray([1.0])).tolist() == [0]
    assert np.isnan(gdt.grad(lambda y: gdt.sum((-2) ** y))(gdt.asarray([2.0])).item(0))


@pytest.mark.parametrize("mesh", meshes([(4,), (2, 2)]), ids=lambda m: f"{m.sizes}{m.grid}")
def test_signed_zeros_keep_their_sign_when_split(mesh: gdt.Mesh) -> None:
    value = np.array([-0.0, 0.0, -1.0, 2.0, -0.0])
    for layout in layouts(mesh, 1):
        x = gdt.asarray(value, layout=layout)
        assert gdt.signbit(x).tolist() == np.signbit(value).tolist()
        assert gdt.copysign(1.0, x).tolist() == np.copysign(1.0, value).tolist()
        assert np.signbit(gdt.erf(x).numpy()).tolist() == np.signbit(value).tolist()


def test_a_wider_cast_of_a_partial_sum_stays_partial() -> None:
    layout = gdt.Layout([None], MESH, partial=["x"])
    x = gdt.asarray(np.ones(3, "float32"), layout=layout)
    assert x.astype("float64").layout is layout
    for dtype in ("float16", "int32", "bool"):
        assert x.astype(dtype).layout is layout.resolved
    small = gdt.asarray(np.full(3, 100, "int8"), layout=layout)
    assert small.astype("int64").layout is layout.resolved
    assert x.astype("float32", copy=False) is x


def test_large_results_are_written_into_recycled_memory() -> None:
    x = gdt.asarray(np.ones((512, 64)), layout=gdt.Layout(["x", None], MESH))
    pool = gdt.backend.backend_of(MESH).pool
    for f in (gdt.exp, gdt.relu, gdt.sigmoid, gdt.softplus, lambda x: x + x, lambda x: x * 2):
        f(x), f(x)
        out = f(x)
        assert pool.owns(out.blocks[0].base), f


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_erf_is_as_accurate_as_it_says(dtype: str) -> None:
    x = np.concatenate([np.linspace(-7, 7, 20001), np.geomspace(1e-30, 6, 2000)]).astype(dtype)
    want = np.array([math.erf(v) for v in x.tolist()])
    ulps = np.abs(error_function.erf(np, x) - want) / np.spacing(np.abs(want).astype(dtype))
    assert ulps.max() <= {"float64": 1, "float32": 7}[dtype]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        (lambda: gdt.arange(3) ** -1, "integers to the power of -1 are no integers"),
        (lambda: gdt.ones(3).astype("nonsense"), "astype: 'nonsense' is not a dtype"),
        (lambda: gdt.ones(3).astype("U1"), "astype: dtype <U1 is no number"),
        (lambda: gdt.sigmoid(gdt.ones(3, complex)), "sigmoid: complex128 is not real"),
        (
            lambda: gdt.ones(3) + gdt.ones(4),
            "shapes do not broadcast: axis -1 is 3 in x but 4 in y",
        ),
        (lambda: gdt.invert(gdt.ones(3)), "invert"),
        (lambda: gdt.ones(3) << 2, "left_shift"),
        (lambda: gdt.add(gdt.ones(3), "a"), "add: y is a str"),
        (lambda: gdt.add(gdt.ones(3)), "add: argument 'y' is missing"),
        (lambda: gdt.exp(gdt.ones(3), axis=0), "exp: no argument 'axis'"),
        (lambda: gdt.where(gdt.ones(3), 1), "where: argument 'y' is missing"),
        (
            lambda: gdt.ones(3, device=OTHER) + gdt.ones(3, layout=SPLIT),
            "operands live on different meshes",
        ),
    ],
)
def test_bad_input_is_named(call: Callable[[], Any], problem: str) -> None:
    with pytest.raises(gdt.errors.GdtError, match=problem):
        call()


@pytest.mark.parametrize("blocks", [1, 4])
def test_integers_to_negative_powers_are_refused_but_in_padding(blocks: int) -> None:
    mesh = gdt.create_mesh([("a", 4)], blocks=blocks)
    layout = gdt.Layout(["a"], mesh)
    x = gdt.asarray(np.arange(-2, 3), layout=layout)
    powers = gdt.asarray([1, 2, 1, 3, 2], layout=layout) - 1  # 0 - 1 in the padding
    step = gdt.function(gdt.power)
    for f in (gdt.power, *[step] * 3):
        assert f(x, powers).tolist() == [1, -1, 1, 1, 2]
    calls = [partial(f, x, powers - 1) for f in (gdt.power, step)]
    calls += [lambda: 2 ** (powers - 1), lambda: x ** np.full(5, -1), lambda: x ** np.int64(-1)]
    for call in calls:
        with pytest.raises(ValueError, match="power: integers to the power of -1"):
            call()


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_partial_sum_is_added_up_before_an_array_divides_it(blocks: int) -> None:
    mesh = gdt.create_mesh([("a", 4)], blocks=blocks)
    column = gdt.asarray([[3.0], [-1.0], [3.0], [-1.0]], layout=gdt.Layout(["a", None], mesh))
    total = gdt.sum(column, axis=0)
    assert total.layout.reductions == ("sum",) and (total / 2).layout.reductions == ("sum",)
    with np.errstate(divide="ignore"):
        assert (total / np.array([0.0, 1.0])).tolist() == [math.inf, 4.0]


@pytest.mark.parametrize("shape", [(), (3,), (2049,), (2100, 1), (0, 40), (70, 31), (70, 32)])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bool"])
def test_relu_of_few_and_many_elements_in_short_and_long_rows(
    shape: tuple[int, ...], dtype: str
) -> None:
    values = np.random.default_rng(0).integers(-5, 6, shape).astype(dtype)
    if dtype == "float32" and values.size:
        values.flat[0] = np.nan
    got = gdt.relu(gdt.asarray(values))
    assert got.dtype == values.dtype
    np.testing.assert_array_equal(got.numpy(), np.maximum(values, np.zeros_like(values)))
