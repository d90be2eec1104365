"""Linear algebra: gradients, what devices hold of split matrices, signs, and wrong arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, AxisError, DtypeError, GradientError, LinAlgError, ShapeError
from gdt.linalg import blocked
from gdt.sharding.mesh import Mesh
from gdt.testing import Oracle, Sample, check_mesh, choices, meshes
from tests.samples.linalg import OF_SQUARES

MESHES = meshes()
RNG = np.random.default_rng(11)
Function = Callable[..., Any]


@pytest.fixture
def by_panels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small matrices are treated as large ones."""
    monkeypatch.setattr(blocked, "GATHERED", 0)


def regular(n: int, dtype: Any = float) -> np.ndarray:
    x = RNG.standard_normal((n, n))
    if np.dtype(dtype).kind == "c":
        x = x + 1j * RNG.standard_normal((n, n))
    return (x + n * np.eye(n)).astype(dtype)


def rows_of(values: np.ndarray, mesh: Mesh) -> DistributedArray:
    """An array whose first axis is split over all of the mesh."""
    specs = [tuple(mesh.axis_names), None, None][: values.ndim]
    return gdt.asarray(values, layout=gdt.Layout(specs, mesh))


# ---------------------------------------------------------------- values


def pairs() -> Iterator[tuple[str, Function, Function, np.ndarray]]:
    linalg, rows = gdt.linalg, RNG.standard_normal((9, 3))
    for dtype, n in ((float, 9), (complex, 6), (np.float32, 8)):
        x = regular(n, dtype)
        positive = x @ x.conj().T
        yield "inv", linalg.inv, np.linalg.inv, x
        yield "det", linalg.det, np.linalg.det, x
        yield "slogdet", linalg.slogdet, np.linalg.slogdet, -x
        yield "cholesky", linalg.cholesky, np.linalg.cholesky, positive
        yield "upper", lambda x: linalg.cholesky(x, upper=True), _upper, positive
        for b in (rows[:n].astype(dtype), rows[:n, :0].astype(dtype)):
            expect = lambda x, b=b: np.linalg.solve(x, b)
            yield "solve", lambda x, b=b: linalg.solve(x, b), expect, x


def _upper(x: np.ndarray) -> np.ndarray:
    return np.linalg.cholesky(x).conj().T


PAIRS = list(pairs())


@pytest.mark.usefixtures("by_panels")
@pytest.mark.parametrize(("name", "function", "of_numpy", "x"), PAIRS, ids=[p[0] for p in PAIRS])
def test_panels_give_what_numpy_gives(
    name: str, function: Function, of_numpy: Function, x: np.ndarray
) -> None:
    expected = of_numpy(x)
    wants = expected if isinstance(expected, tuple) else (expected,)
    bound = 1e-4 if x.dtype == np.float32 else 1e-11
    for mesh in MESHES[::2]:
        for (layout,) in choices(mesh, [2], limit=3, seed=len(x)):
            out = function(gdt.asarray(x, layout=layout))
            for got, want in zip(out if isinstance(out, tuple) else (out,), wants, strict=True):
                assert got.dtype == want.dtype and got.shape == want.shape
                np.testing.assert_allclose(
                    got.numpy(), want, bound, bound * np.abs(want).max(initial=0)
                )


def test_stacks_have_cholesky_decompositions() -> None:
    x = np.stack([regular(4) for _ in range(3)])
    sample = Sample((x @ x.mT,), expect=np.linalg.cholesky, grad=False)
    for mesh in MESHES:
        check_mesh(gdt.linalg.cholesky, sample, mesh, limit=4)


@pytest.mark.parametrize("name", OF_SQUARES)
def test_functions_of_squares_are_those_of_whole_ones(name: str) -> None:
    x = np.stack([regular(4) for _ in range(3)])
    x = x + x.mT
    expected = getattr(np.linalg, name)(x)
    wants = expected if isinstance(expected, tuple) else (expected,)
    for mesh in MESHES[::3]:
        for (layout,) in choices(mesh, [3], limit=3, seed=len(name)):
            out = getattr(gdt.linalg, name)(gdt.asarray(x, layout=layout))
            for got, want in zip(out if isinstance(out, tuple) else (out,), wants, strict=True):
                assert got.dtype == want.dtype or name in ("eig", "eigvals")
                np.testing.assert_allclose(got.numpy(), want, 1e-10, 1e-10)


@pytest.mark.usefixtures("by_panels")
def test_rows_are_exchanged() -> None:
    """Without exchanges the first pivots are 0, and later ones small."""
    x = np.roll(np.eye(9), 5, axis=0) + 1e-13 * RNG.standard_normal((9, 9))
    x[0, 0] = 0
    split = rows_of(x, MESHES[-1])
    assert np.allclose((gdt.linalg.inv(split) @ split).numpy(), np.eye(9), atol=1e-9)
    assert np.isclose(float(gdt.linalg.det(split)), np.linalg.det(x))


@pytest.mark.parametrize("shape", [(16, 3), (17, 4), (33, 2), (8, 1)])
def test_tall_matrices_keep_their_rows_split_and_numpys_signs(shape: tuple[int, int]) -> None:
    x = RNG.standard_normal(shape)
    x[shape[0] // 2 :, 0] = 0
    for mesh in MESHES:
        q, r = gdt.linalg.qr(rows_of(x, mesh))
        for got, want in zip((q, r), np.linalg.qr(x), strict=True):
            np.testing.assert_allclose(got.numpy(), want, atol=1e-12)
        u, s, vh = gdt.linalg.svd(rows_of(x, mesh), full_matrices=False)
        np.testing.assert_allclose(((u * s) @ vh).numpy(), x, atol=1e-12)
        assert q.layout.shard_counts[0] == u.layout.shard_counts[0]
        assert q.layout.shard_counts[0] in (mesh.size, 1)
        assert q.layout.shard_counts[0] == mesh.size or shape[0] < mesh.size * shape[1]


def test_the_names_of_products_are_gdts() -> None:
    x, w = (gdt.asarray(RNG.standard_normal((2, 3))) for _ in range(2))
    vectors, matrices = (x, w), (x, w.mT)
    calls: dict[str, tuple[Any, ...]] = {
        "matmul": matrices, "tensordot": (*matrices, 1), "vecdot": vectors, "cross": vectors,
        "outer": (x[0], w[0]), "matrix_transpose": (x,), "diagonal": (x, 1), "trace": (x,),
    }  # fmt: skip
    for name, args in calls.items():
        expected = (
            getattr(np.linalg, name)(*[np.asarray(a) for a in args[:2]])
            if name not in ("tensordot", "diagonal")
            else None
        )
        out = getattr(gdt.linalg, name)(*args)
        if expected is not None:
            np.testing.assert_allclose(out.numpy(), expected)
    assert np.allclose(gdt.linalg.tensordot(x, w.mT, 1).numpy(), x.numpy() @ w.numpy().T)
    assert np.allclose(gdt.linalg.diagonal(x, 1).numpy(), x.numpy().diagonal(1))
    inverse = np.linalg.inv(gdt.eye(3))
    assert isinstance(inverse, DistributedArray)


# ---------------------------------------------------------------- what devices hold


def largest_share(function: Function, x: DistributedArray) -> float:
    """The largest array that one device holds in a call, in units of its share of `x`."""
    held = [r.local_nbytes for row in gdt.explain(lambda: function(x)).rows for r in row.results]
    return max(held) / (x.type.nbytes / x.mesh.size)


def test_no_device_holds_a_large_split_matrix() -> None:
    mesh, n = gdt.create_mesh([("x", 8)]), 192
    x, positive = regular(n), regular(n)
    x, positive = x / n, positive @ positive.T
    for function, values in (
        (gdt.linalg.cholesky, positive),
        (gdt.linalg.det, x),
        (lambda x: gdt.linalg.solve(x, x[:, :8]), x),
    ):
        assert largest_share(function, rows_of(values, mesh)) <= 2.2
    assert largest_share(gdt.linalg.inv, rows_of(x, mesh)) <= 3
    tall = rows_of(RNG.standard_normal((4096, 8)), mesh)
    for function in (gdt.linalg.qr, gdt.linalg.svdvals, gdt.linalg.pinv, gdt.linalg.lstsq):
        given = (
            (lambda x: gdt.linalg.lstsq(x, x[:, 0])) if function is gdt.linalg.lstsq else function
        )
        assert largest_share(given, tall) <= 1.1


def test_stacks_are_computed_where_they_are() -> None:
    mesh = gdt.create_mesh([("x", 8)])
    stack = gdt.asarray(np.stack([regular(4)] * 16), layout=gdt.Layout(["x", None, None], mesh))
    for function in (gdt.linalg.inv, gdt.linalg.svd, gdt.linalg.eigh, gdt.linalg.det):
        assert not any(row.collectives for row in gdt.explain(lambda f=function: f(stack)).rows)
    split = gdt.relayout(stack, [None, "x", None])
    kinds = [c.kind for r in gdt.explain(lambda: gdt.linalg.inv(split)).rows for c in r.collectives]
    assert kinds == ["all_to_all"]


# ---------------------------------------------------------------- gradients


def _spd(x: Any) -> Any:
    return x @ x.mT + 3.0 * gdt.eye(x.shape[-1])


GRADIENTS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "cholesky": (lambda x: gdt.linalg.cholesky(_spd(x)), (3, 3)),
    "eigh": (lambda x: tuple(gdt.linalg.eigh(_spd(x))), (2, 3, 3)),
    "eigvalsh": (lambda x: gdt.linalg.eigvalsh(_spd(x)), (3, 3)),
    "eig": (lambda x: gdt.abs(gdt.linalg.eig(x)[1]), (3, 3)),  # a phase is arbitrary
    "eigvals": (lambda x: gdt.abs(gdt.linalg.eigvals(x)), (3, 3)),
    "tall qr": (lambda x: tuple(gdt.linalg.qr(x)), (9, 2)),
    "complex inv": (lambda x: gdt.imag(gdt.linalg.inv(x + 2j * gdt.eye(3))), (3, 3)),
    "complex qr": (lambda x: gdt.real(gdt.linalg.qr(x * (1 + 2j) + 1j)[0]), (4, 2)),
    "complex svd": (lambda x: gdt.linalg.svdvals(x * (1 + 2j) + 1j), (4, 2)),
    "complex slogdet": (lambda x: gdt.imag(gdt.linalg.slogdet(x + 2j * gdt.eye(3))[0]), (3, 3)),
    "complex cholesky": (
        lambda x: gdt.imag(
            gdt.linalg.cholesky((x + 1j) @ gdt.conj((x + 1j).mT) + 3.0 * gdt.eye(3))
        ),
        (3, 3),
    ),
    "complex pinv": (lambda x: gdt.real(gdt.linalg.pinv(x * (1 + 2j) + 1j)), (4, 2)),
}


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_finite_differences(name: str) -> None:
    function, shape = GRADIENTS[name]
    oracle = Oracle(function, Sample((np.random.default_rng(4).standard_normal(shape),)))
    for mesh in (MESHES[0], MESHES[-1]):
        for i, chosen in enumerate(choices(mesh, [len(shape)], limit=2, seed=3)):
            oracle.check(mesh, chosen, second=i == 1)


def test_determinants_of_singular_matrices_have_gradients() -> None:
    x = np.array([[[1.0, 2.0], [2.0, 4.0]], [[0.0, 0.0], [0.0, 0.0]], [[1.0, 2.0], [3.0, 4.0]]])
    adjugates = [[[4.0, -2.0], [-2.0, 1.0]], [[0.0, 0.0], [0.0, 0.0]], [[4.0, -3.0], [-2.0, 1.0]]]
    for mesh in (MESHES[0], MESHES[-1]):
        gradient = gdt.grad(lambda x: gdt.sum(gdt.linalg.det(x)))(rows_of(x, mesh))
        np.testing.assert_allclose(gradient.numpy(), adjugates, atol=1e-14)


@pytest.mark.usefixtures("by_panels")
@pytest.mark.parametrize("name", ["inv", "det", "slogdet", "solve"])
def test_gradients_of_panels_are_those_of_whole_matrices(name: str) -> None:
    count = 2 if name == "solve" else 1
    sample = Sample(tuple(regular(5) for _ in range(count)))
    oracle = Oracle(getattr(gdt.linalg, name), sample)
    for chosen in choices(MESHES[-1], [2] * count, limit=3, seed=4):
        oracle.check(MESHES[-1], chosen, second=True)


# ---------------------------------------------------------------- wrong arguments

SPLIT = rows_of(np.ones((4, 4)), MESHES[0])
WRONG: list[tuple[Function, type[Exception], str]] = [
    (lambda: gdt.linalg.inv(gdt.ones((2, 3))), LinAlgError, "which are not square"),
    (lambda: gdt.linalg.inv(gdt.ones(3)), LinAlgError, "x has rank 1, which is no matrix"),
    (lambda: gdt.linalg.inv(SPLIT), LinAlgError, r"linalg.inv: Singular matrix\n  x: float64\[4"),
    (lambda: gdt.linalg.cholesky(-SPLIT), LinAlgError, "not positive definite"),
    (lambda: gdt.linalg.solve(gdt.eye(2), gdt.ones(3)), ShapeError, "y has 3 rows for 2 equations"),
    (lambda: gdt.linalg.solve(gdt.ones((2, 2)), gdt.ones(2)), LinAlgError, "Singular matrix"),
    (lambda: gdt.linalg.det(gdt.ones((2, 2), np.float16)), DtypeError, "x is of dtype float16"),
    (lambda: gdt.linalg.svd(gdt.full((2, 2), np.nan)), LinAlgError, "SVD did not converge"),
    (lambda: gdt.linalg.eig(gdt.full((2, 2), np.inf)), LinAlgError, "must not contain infs"),
    (lambda: gdt.linalg.qr(gdt.eye(2), mode="full"), ArgumentError, "mode is 'full'"),
    (lambda: gdt.linalg.eigh(gdt.eye(2), "X"), ArgumentError, "UPLO is 'X'"),
    (lambda: gdt.linalg.norm(gdt.eye(2), ord="row"), ArgumentError, "'row' is no norm of matrices"),
    (lambda: gdt.linalg.norm(gdt.ones(2), ord="fro"), ArgumentError, "no norm of vectors"),
    (lambda: gdt.linalg.norm(gdt.ones((2, 2, 2)), ord=2), ShapeError, "neither vectors nor matr"),
    (lambda: gdt.linalg.vector_norm(gdt.eye(2), axis=2), AxisError, "out of range for rank 2"),
    (lambda: gdt.linalg.matrix_power(gdt.eye(2), 1.5), ArgumentError, "n is 1.5, not int"),
    (lambda: gdt.linalg.multi_dot([gdt.eye(2)]), ShapeError, "1 arrays"),
    (lambda: gdt.linalg.outer(gdt.eye(2), gdt.ones(2)), ShapeError, "are no vectors"),
    (lambda: gdt.linalg.tensorinv(gdt.ones((2, 3)), 1), LinAlgError, "different numbers"),
    (lambda: gdt.cross(gdt.ones(2), gdt.ones(2)), ShapeError, "is not of length 3"),
    (lambda: gdt.vecdot(gdt.ones(2), gdt.ones(3)), ShapeError, "is 2 in x but 3 in w"),
    (
        lambda: gdt.grad(lambda x: gdt.sum(gdt.linalg.svd(x)[0]))(gdt.ones((3, 2))),
        GradientError,
        "full_matrices=True",
    ),
    (
        lambda: gdt.grad(lambda x: gdt.sum(gdt.linalg.qr(x, "complete")[0]))(gdt.ones((3, 2))),
        GradientError,
        "the mode 'complete'",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "text"), WRONG, ids=range(len(WRONG)))
def test_errors_name_what_is_wrong(call: Function, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.usefixtures("by_panels")
@pytest.mark.parametrize("name", ["inv", "solve"])
def test_a_singular_matrix_of_panels_is_named(name: str) -> None:
    x = rows_of(np.ones((6, 6)), MESHES[0])
    with pytest.raises(np.linalg.LinAlgError, match=rf"linalg.{name}: Singular matrix\n  x: float"):
        getattr(gdt.linalg, name)(*[x, x][: 1 + (name == "solve")])
    assert float(gdt.linalg.det(x)) == 0.0
    with pytest.raises(LinAlgError, match=r"not positive definite\n  x: float64\[6, 6\]"):
        gdt.linalg.cholesky(-x)


def test_norms_of_half_precision_are_numpys() -> None:
    x = np.linspace(-2, 3, 12, dtype=np.float16).reshape(4, 3)
    calls: list[tuple[str, dict[str, Any]]] = [
        ("norm", {}), ("norm", {"ord": 1, "axis": 0}), ("norm", {"ord": np.inf}),
        ("vector_norm", {"axis": 1}), ("vector_norm", {"ord": 3}), ("matrix_norm", {}),
    ]  # fmt: skip
    for name, static in calls:
        norm = getattr(gdt.linalg, name)(gdt.asarray(x), **static)
        expected = getattr(np.linalg, name)(x, **static)
        assert norm.dtype == expected.dtype == np.float16
        np.testing.assert_allclose(norm.numpy(), expected, rtol=4e-3)
    with pytest.raises(DtypeError, match="svdvals: x is of dtype float16"):
        gdt.linalg.norm(gdt.asarray(x), 2)
