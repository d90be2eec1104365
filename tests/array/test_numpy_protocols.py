"""NumPy's functions on distributed arrays run as gdt's, or as NumPy's own on what gdt has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.array.registry import ALIASES, FUNCTIONS
from gdt.errors import DtypeError, MoveError
from gdt.sharding.mesh import Mesh
from gdt.state.trees import leaves
from gdt.testing import assert_close, meshes, tolerance
from tests.compositions import COMPOSED, CREATIONS
from tests.samples import SAMPLES

SAMPLED = SAMPLES | COMPOSED

FOLDED, APART = meshes([(2, 2)], modes=["folded", "apart"])


def _dispatched() -> dict[str, Callable[..., Any]]:
    """The functions of NumPy that ask their arguments, and that gdt has under a name."""
    functions = {}
    for name, function in vars(np).items():
        own = ALIASES.get(name, name)
        if (
            hasattr(function, "_implementation")
            and function.__name__ == name
            and own.rstrip("_") in SAMPLED
        ):
            functions[name] = function
    return functions


DISPATCHED = _dispatched()

# NumPy leaves open how equal elements are ordered, or those beside the chosen one; gdt sorts them.
OPEN_ORDER = {"argpartition", "argsort", "partition", "unique_values"}


def placed(value: Any, mesh: Mesh) -> Any:
    if isinstance(value, np.ndarray):
        specs = ["x", "y", *[None] * value.ndim][: value.ndim]
        names = dict(zip("xy", mesh.axis_names, strict=True))
        layout = gdt.Layout([names[s] if s else None for s in specs], mesh)
        return gdt.asarray(value, layout=layout)
    if isinstance(value, list | tuple):
        return type(value)(placed(v, mesh) for v in value)
    return value


def has_arrays(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(map(has_arrays, value))
    return isinstance(value, np.ndarray)


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
@pytest.mark.parametrize("name", DISPATCHED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of NumPy, on infinities and empty arrays
def test_a_function_of_numpy_is_gdts(name: str, mesh: Mesh) -> None:
    function, compared = DISPATCHED[name], 0
    for sample in SAMPLED[ALIASES.get(name, name.rstrip("_"))]:
        static = dict(sample.static)
        dtype = (static.pop("dtype"),) if name == "astype" else ()  # positional in NumPy
        if not has_arrays(sample.args):
            continue
        try:
            want = function(*sample.args, *dtype, **static)
        except TypeError:
            continue  # an argument that NumPy's function lacks
        if name in OPEN_ORDER:
            want = sample.expect(*sample.args, **static)
        with gdt.implicit_fetch("raise"):
            got = function(*placed(sample.args, mesh), *dtype, **static)
        for a, b in zip(leaves([got]), leaves([want]), strict=True):
            assert isinstance(a, DistributedArray)
            bound = tolerance([np.asarray(x).dtype for x in (*sample.arrays, b)], 100)
            assert_close(a.numpy(), np.asarray(b), bound, name)
        compared += 1
    assert compared, f"no sample of {name} is one of NumPy's"


def test_most_functions_of_gdt_are_reached_through_numpy() -> None:
    missing = {n for n in FUNCTIONS if hasattr(getattr(np, n, None), "_implementation")}
    missing -= {ALIASES.get(n, n) for n in DISPATCHED}
    missing -= {"copyto", "fill_diagonal", "place", "put", "put_along_axis", "putmask"}
    missing -= {"save", "savetxt", "savez", "savez_compressed"}
    missing -= {*CREATIONS, "einsum_path", "apply_along_axis", "apply_over_axes", "fromfunction"}
    # Made from nothing, or from the type of an array alone; tested below.
    dtypes = {"can_cast", "common_type", "iscomplexobj", "isrealobj", "min_scalar_type",
              "result_type"}  # fmt: skip
    missing -= {"array2string", "may_share_memory", "shares_memory"}  # which return no arrays
    assert missing - dtypes == {"array_repr", "array_str", "empty_like", "full_like", "linspace",
                                "ones_like", "zeros_like"}  # fmt: skip


@pytest.fixture
def x() -> DistributedArray:
    return gdt.asarray(np.arange(12.0).reshape(4, 3), layout=gdt.Layout(["a", None], FOLDED))


def test_arrays_like_others(x: DistributedArray) -> None:
    for got in (np.zeros_like(x), np.ones_like(x), np.full_like(x, 3), np.empty_like(x)):
        assert isinstance(got, DistributedArray) and got.layout is x.layout
    assert np.full_like(x, 3, dtype="int32").tolist() == [[3] * 3] * 4


def test_a_function_that_gdt_lacks_is_named_and_nothing_is_fetched(x: DistributedArray) -> None:
    with pytest.raises(TypeError, match=r"(?s)numpy.lib.scimath.sqrt.* To .*pass np\.asarray\(x\)"):
        np.emath.sqrt(x)
    with pytest.raises(TypeError, match=r"(?s)numpy.isnat: .*gdt has isnan\."):
        np.isnat(x)
    with pytest.raises(TypeError, match=r"numpy\.hypot\.at: is not available"):
        np.hypot.at(x, 0, 1.0)
    with gdt.implicit_fetch("allow"):
        assert np.asarray(np.emath.sqrt(-x)).tolist() == np.emath.sqrt(-x.numpy()).tolist()
    with gdt.implicit_fetch("raise"), pytest.raises(MoveError, match="implicit fetch"):
        np.emath.sqrt(x)


def test_facts_are_not_fetched(x: DistributedArray) -> None:
    with gdt.implicit_fetch("raise"):
        assert np.shape(x) == (4, 3) and np.ndim(x) == 2 and np.size(x) == 12
        assert not np.iscomplexobj(x)
        assert np.array_equal(x, x) and not np.array_equal(x, x + 1)
        with pytest.raises(MoveError, match="implicit fetch"):
            np.asarray(x)


def test_arguments_that_say_nothing_are_dropped_and_others_named(x: DistributedArray) -> None:
    assert np.sum(x, 0, None, None, True).shape == (1, 3)
    assert np.clip(x, a_min=None, a_max=2.0).tolist()[1] == [2.0, 2.0, 2.0]
    for call in (
        lambda: np.sum(x, out=np.zeros(3), axis=0),
        lambda: np.concatenate([x, x], out=np.zeros((8, 3))),
        lambda: np.add(x.numpy(), x, out=np.zeros((4, 3))),
        lambda: np.add.at(np.zeros((4, 3)), 0, x[0]),
    ):
        with pytest.raises(DtypeError, match="not written into an array of the host"):
            call()


REDUCTIONS = [np.add, np.multiply, np.maximum, np.minimum, np.logical_and, np.logical_or]


@pytest.mark.parametrize("axis", [{}, {"axis": 1}, {"axis": None}, {"axis": (0, 1)}], ids=str)
@pytest.mark.parametrize("ufunc", REDUCTIONS, ids=lambda u: u.__name__)
def test_reductions_of_ufuncs(ufunc: np.ufunc, axis: dict[str, Any], x: DistributedArray) -> None:
    got, want = ufunc.reduce(x, **axis), ufunc.reduce(x.numpy(), **axis)
    assert isinstance(got, DistributedArray)
    assert got.shape == np.shape(want) and got.tolist() == want.tolist()
    assert (
        ufunc.reduce(x, keepdims=True, **axis).shape
        == ufunc.reduce(x.numpy(), keepdims=True, **axis).shape
    )


def same(got: Any, want: Any) -> None:
    assert isinstance(got, DistributedArray)
    assert got.dtype == want.dtype and got.shape == np.shape(want)
    np.testing.assert_allclose(got.numpy(), want, atol=1e-12)


MASKED = ["sum", "prod", "mean", "any", "all"]


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
@pytest.mark.parametrize("name", [*MASKED, "max", "min"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of means of nothing
def test_reductions_of_some_elements_and_from_a_number(name: str, mesh: Mesh) -> None:
    host = np.arange(15.0).reshape(5, 3) - 4
    x, mask = placed(host, mesh), host % 2 == 0
    function = getattr(np, name)
    begins: list[dict[str, Any]] = [{}] if name in MASKED else []
    begins += [{"initial": 3.0}] if name in ("sum", "prod", "max", "min") else []
    for options in begins:
        for where in (mask, placed(mask, mesh), mask[:, :1], True):
            fixed = where.numpy() if isinstance(where, DistributedArray) else where
            for static in ({}, {"axis": 0}, {"axis": 1, "keepdims": True}):
                want = np.asarray(function(host, where=fixed, **static, **options))
                same(function(x, where=where, **static, **options), want)
                same(getattr(x, name)(where=where, **static, **options), want)
    with pytest.raises(ValueError, match=r"where of shape \[2\] does not fit|may leave no element"):
        function(x, where=np.ones(2, bool))


def test_a_maximum_from_a_number_of_nothing(x: DistributedArray) -> None:
    same(np.max(x[:0], axis=0, initial=2.0), np.full(3, 2.0))
    with pytest.raises(ValueError, match="initial"):
        np.max(x, where=x.numpy() > 1)


def test_the_gradient_of_a_masked_mean(x: DistributedArray) -> None:
    mask = x.numpy() > 5
    gradient = gdt.grad(lambda x: gdt.mean(x, where=mask))(x)
    np.testing.assert_allclose(gradient.numpy(), mask / mask.sum())


UFUNCS = [np.add, np.multiply, np.maximum, np.logical_and, np.bitwise_or, np.hypot, np.gcd, np.fmax]


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
@pytest.mark.parametrize("ufunc", UFUNCS, ids=lambda u: u.__name__)
def test_methods_of_ufuncs(ufunc: np.ufunc, mesh: Mesh) -> None:
    host = np.arange(15).reshape(5, 3)
    x = placed(host, mesh)
    for axis in (0, -1):
        same(ufunc.accumulate(x, axis=axis), ufunc.accumulate(host, axis=axis))
        same(ufunc.reduce(x, axis=axis), ufunc.reduce(host, axis=axis))
        same(ufunc.reduceat(x, [0, 2, 1], axis=axis), ufunc.reduceat(host, [0, 2, 1], axis=axis))
    same(ufunc.outer(x[0], x), ufunc.outer(host[0], host))
    same(ufunc.outer(host[0], x), ufunc.outer(host[0], host))


def test_results_are_written_into_distributed_arrays(x: DistributedArray) -> None:
    out = gdt.zeros_like(x)
    other = out
    assert np.add(x, 1, out=out) is out and out.layout is x.layout
    same(other, x.numpy() + 1)
    same(np.add(x, 1, dtype="float32"), np.add(x.numpy(), 1, dtype="float32"))
    total = gdt.zeros(3)
    assert np.sum(x, axis=0, out=total) is total
    same(total, x.numpy().sum(0))
    with pytest.raises(ValueError, match=r"out has shape \[3\], the result \[4\]"):
        np.sum(x, axis=1, out=total)
    with pytest.raises(TypeError, match="float64 cannot be written as int64"):
        np.divide(x, 2, out=gdt.zeros_like(x, dtype=int))
    counts, host = gdt.zeros(3), np.zeros(3)
    np.add.at(counts, [0, 0, 2], 1.0)
    np.add.at(host, [0, 0, 2], 1.0)
    same(counts, host)


@pytest.mark.parametrize("mesh", [FOLDED, APART], ids=["folded", "apart"])
def test_results_are_written_where_a_mask_is_true(mesh: Mesh) -> None:
    host = np.arange(15.0).reshape(5, 3)
    x, own = placed(host, mesh), np.ones((5, 3), np.float32)
    for mask in (host % 2 == 0, host[:, :1] > 4, False):
        out = placed(own, mesh)
        where = placed(mask, mesh) if isinstance(mask, np.ndarray) else mask
        written = np.divide(1, x, out=out, where=where)  # of x = 0 too, without a warning
        with np.errstate(all="ignore"):
            same(out, np.divide(1, host, out=own.copy(), where=mask))
        assert written is out
    whole, part = placed(own, mesh), placed(own, mesh)
    np.divmod(x, 4, out=(whole, part), where=host > 5)
    want = np.divmod(host, 4, out=(own.copy(), own.copy()), where=host > 5)
    same(whole, want[0])
    same(part, want[1])


def test_divmod_round_and_where_of_one_argument(x: DistributedArray) -> None:
    host = x.numpy()
    for got, want in (
        (divmod(x, 4), divmod(host, 4)), (np.divmod(x, 4), np.divmod(host, 4)),
        (divmod(7, x + 1), divmod(7, host + 1)), (np.where(x > 3), np.where(host > 3)),
        (gdt.where(x > 3), np.where(host > 3)),
        ([round(x / 3, 1)], [np.round(host / 3, 1)]), ([round(x / 3)], [np.round(host / 3)]),
    ):  # fmt: skip
        assert [np.asarray(g).tolist() for g in got] == [w.tolist() for w in want]
    assert round(gdt.asarray(2.5)) == 2 and type(round(gdt.asarray(2.5))) is int
    with pytest.raises(TypeError, match="divmod"):
        divmod(x, object())


def test_numpy_and_distributed_arrays_mix(x: DistributedArray) -> None:
    joined = np.concatenate([np.zeros((1, 3)), x])
    assert isinstance(joined, DistributedArray)
    assert joined.tolist() == [[0.0, 0.0, 0.0], *x.tolist()]


def test_functions_of_numpy_are_recorded() -> None:
    x = gdt.asarray([1.0, 2.0, 3.0])
    gradient = gdt.grad(lambda x: np.sum(np.concatenate([x, x * x])))(x)
    assert gradient.tolist() == [3.0, 5.0, 7.0]


def test_arrays_of_other_libraries_are_left_to_them(x: DistributedArray) -> None:
    class Foreign:
        def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> str:
            return "foreign"

    assert np.concatenate([x, Foreign()]) == "foreign"  # type: ignore[list-item]


@pytest.mark.parametrize(
    ("method", "args"),
    [("swapaxes", (0, 1)), ("repeat", (2, 0)), ("dot", (np.ones((3, 2)),)), ("trace", ()),
     ("diagonal", (1,)), ("conjugate", ()), ("cumprod", (0,)), ("ravel", ("F",)),
     ("flatten", ("F",)), ("compress", ([True, False, True], 1))],
)  # fmt: skip
def test_methods_of_numpys_arrays(method: str, args: tuple[Any, ...], x: DistributedArray) -> None:
    got, want = getattr(x, method)(*args), getattr(x.numpy(), method)(*args)
    assert isinstance(got, DistributedArray) and got.numpy().tolist() == want.tolist()


def test_other_methods_of_numpys_arrays(x: DistributedArray) -> None:
    other, before = x.flatten(), x.ravel().tolist()
    assert x.flatten().searchsorted([2.5, 4], side="right").tolist() == [3, 5]
    chosen = (x > 2).astype(int).choose([x, -x]).tolist()
    assert chosen == [[0, 1, 2], [-3, -4, -5], [-6, -7, -8], [-9, -10, -11]]
    x.fill(2.5)
    assert x.tolist() == np.full(x.shape, 2.5).tolist() and other.tolist() == before


def test_trace_takes_nones(x: DistributedArray) -> None:
    assert float(np.trace(x)) == 12.0 and float(x.trace(dtype=None, out=None)) == 12.0
    with pytest.raises(DtypeError, match="not written into an array of the host"):
        x.trace(out=np.zeros(()))  # type: ignore[arg-type]


def test_numpys_shuffle_warns_of_views(x: DistributedArray) -> None:
    with pytest.warns(UserWarning, match="view semantics may contain duplicates"):
        np.random.default_rng(2).shuffle(x)
