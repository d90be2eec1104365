"""`jvp`, `jacobian` and `hessian` against finite differences; `vmap` against NumPy's loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import ArgumentError, AxisError, GdtError, GradientError, ShapeError
from gdt.testing import meshes
from gdt.testing.layouts import layouts

MESHES = meshes([(2, 2), (8,)])
STEP = 1e-4


def placed(value: np.ndarray, mesh: gdt.Mesh, number: int) -> gdt.DistributedArray:
    """The value in one of the mesh's layouts."""
    every = layouts(mesh, value.ndim)
    return gdt.asarray(value, layout=every[number % len(every)])


def differences(f: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
    """The derivatives of all elements of f(x), and behind their axes those of x."""
    columns = []
    for place in np.ndindex(x.shape):
        step = np.zeros_like(x)
        step[place] = STEP
        columns.append((f(x + step) - f(x - step)) / (2 * STEP))
    out = np.stack(columns, axis=-1)
    return out.reshape(*out.shape[:-1], *x.shape)


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "elements": lambda x: gdt.exp(x) * gdt.sin(x),
    "rows": lambda x: gdt.sum(x * x * x, axis=-1),
    "softmax": gdt.softmax,
    "product": lambda x: x @ (x.mT + 1.0),
    "sorted": lambda x: gdt.sort(gdt.reshape(x, -1)) ** 2,
    "largest": lambda x: gdt.max(x, axis=0) * gdt.mean(x),
    "inverse": lambda x: gdt.linalg.inv(x @ x.mT + 3.0 * gdt.eye(x.shape[0])),
    "linear": lambda x: 3.0 * x[:, 1:],
    "constant": lambda x: gdt.ones(2),
    "transform": lambda x: gdt.real(gdt.fft.fft(x)) + gdt.abs(gdt.fft.ifft(x)),
}


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives_are_finite_differences(name: str, mesh: gdt.Mesh) -> None:
    f, seed = FUNCTIONS[name], len(name)
    rng = np.random.default_rng(seed)
    whole, direction = rng.standard_normal((3, 5)), rng.standard_normal((3, 5))
    of_numpy = lambda x: f(gdt.asarray(x)).numpy()
    with gdt.default_mesh(mesh):
        x, v = placed(whole, mesh, seed), placed(direction, mesh, seed + 1)
        value, along = gdt.jvp(f, (x,), (v,))
        jacobian = gdt.jacobian(f)(x)
        weighed = lambda x: gdt.sum(f(x) * f(x))
        product = gdt.jvp(gdt.grad(weighed), (x,), (v,))[1]
    want = differences(of_numpy, whole)
    np.testing.assert_allclose(value.numpy(), of_numpy(whole), atol=1e-12)
    np.testing.assert_allclose(jacobian.numpy(), want, atol=1e-5)
    assert jacobian.layout.dims[-2:] == x.layout.dims
    np.testing.assert_allclose(along.numpy(), (want * direction).sum((-2, -1)), atol=1e-4)
    slopes = lambda x: gdt.grad(weighed)(gdt.asarray(x)).numpy()
    turned = (slopes(whole + STEP * direction) - slopes(whole - STEP * direction)) / (2 * STEP)
    np.testing.assert_allclose(product.numpy(), turned, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_hessians_of_trees_of_arguments(mesh: gdt.Mesh) -> None:
    w, b = np.arange(6.0).reshape(2, 3) / 6, np.array([0.5, -1.0, 2.0])
    with gdt.default_mesh(mesh):
        weights = {"w": placed(w, mesh, 3), "b": placed(b, mesh, 1)}
        f = lambda p, scale: scale * gdt.sum(gdt.tanh(p["w"] + p["b"]) ** 2)
        found = gdt.hessian(f)(weights, scale=2.0)
        first, second = gdt.hessian(lambda x, y: gdt.sum(x * y * y), (0, 1))(*[weights["b"]] * 2)
    g = lambda w, b: 2.0 * (np.tanh(w + b) ** 2).sum()
    of_w = lambda w, b: differences(lambda x: g(x, b), w)
    np.testing.assert_allclose(
        found["w"]["w"].numpy(), differences(lambda x: of_w(x, b), w), atol=1e-5
    )
    np.testing.assert_allclose(
        found["w"]["b"].numpy(), differences(lambda x: of_w(w, x), b), atol=1e-5
    )
    assert found["w"]["w"].layout.dims[2:] == weights["w"].layout.dims
    np.testing.assert_allclose(found["b"]["w"].numpy(), found["w"]["b"].numpy().transpose(2, 0, 1))
    assert not first[0].numpy().any()
    np.testing.assert_allclose(first[1].numpy(), np.diag(2 * b))
    np.testing.assert_allclose(second[1].numpy(), np.diag(2 * b))


def test_derivatives_of_complex_functions_are_holomorphic() -> None:
    z, v = gdt.asarray([1.0 + 2.0j, 0.5j]), gdt.asarray([1.0j, 2.0 + 0j])
    np.testing.assert_allclose(gdt.jacobian(lambda z: z**3)(z).numpy(), np.diag(3 * z.numpy() ** 2))
    np.testing.assert_allclose(
        gdt.jvp(lambda z: z**3, (z,), (v,))[1].numpy(), 3 * z.numpy() ** 2 * v.numpy()
    )
    size = gdt.jvp(gdt.abs, (z,), (v,))[1]  # of the plane: as the direction turns
    np.testing.assert_allclose(size.numpy(), np.real(z.numpy().conj() * v.numpy()) / abs(z.numpy()))
    with pytest.raises(GradientError, match="only one is complex"):
        gdt.jacobian(gdt.abs)(z)


def test_jacobians_of_nothing_and_of_trees() -> None:
    x = gdt.ones((2, 3), "float32")
    assert gdt.jacobian(lambda x: x[:0])(x).shape == (0, 3, 2, 3)
    found = gdt.jacobian(lambda x, y: {"a": gdt.sum(x), "b": [x[0] * y]}, (0, 1))(x, x[0])
    assert found["a"][0].tolist() == [[1.0] * 3] * 2 and not found["a"][1].numpy().any()
    assert found["b"][0][1].tolist() == np.eye(3).tolist()
    assert found["b"][0][0].dtype == np.float32


def test_a_derivative_is_differentiated_and_recorded() -> None:
    x = gdt.asarray([0.5, -1.0])
    cubes = gdt.grad(lambda x: gdt.sum(gdt.jacobian(lambda x: x**3)(x) ** 2))
    np.testing.assert_allclose(cubes(x).numpy(), 36 * x.numpy() ** 3)
    step = gdt.function(lambda x, v: gdt.jvp(gdt.grad(lambda x: gdt.sum(x**3)), (x,), (v,))[1])
    for n in range(4):
        v = gdt.asarray([1.0, n])
        np.testing.assert_allclose(step(x, v).numpy(), 6 * x.numpy() * v.numpy())


@pytest.mark.parametrize(
    ("tangents", "message"),
    [
        ((gdt.ones(3), gdt.ones(3)), "2 tangents for 1 primals"),
        ((gdt.ones((3, 1)),), "another shape or dtype"),
        ((gdt.ones(3, "float32"),), "another shape or dtype"),
        ((gdt.ones(3, "int64"),), "dtype int64"),
    ],
)
def test_tangents_that_do_not_fit(tangents: Any, message: str) -> None:
    with pytest.raises(GradientError, match=message):
        gdt.jvp(gdt.exp, (gdt.ones(3),), tangents)


# ---------------------------------------------------------------- vmap


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_vmap_is_a_loop_over_slices(axis: int, mesh: gdt.Mesh) -> None:
    rng = np.random.default_rng(axis + 5)
    x, y = rng.standard_normal((5, 8, 9)), rng.standard_normal(4)
    f = lambda row, y: {"sum": row.sum(), "outer": (row[0, :, None] * y, row + 1)}
    slices = [f(row, y) for row in np.moveaxis(x, axis, 0)]
    for number in range(6):
        split, vector = placed(x, mesh, number), placed(y, mesh, number)
        axes = {"sum": 0, "outer": (1, axis)}
        got = gdt.vmap(f, in_axes=(axis, None), out_axes=axes)(split, vector)
        np.testing.assert_allclose(got["sum"].numpy(), [s["sum"] for s in slices])
        np.testing.assert_array_equal(
            got["outer"][0].numpy(), np.stack([s["outer"][0] for s in slices], 1)
        )
        np.testing.assert_array_equal(got["outer"][1].numpy(), x + 1)
        assert got["outer"][1].layout.dims[axis] == split.layout.dims[axis]
        assert got["sum"].layout.dims[0] == split.layout.dims[axis]


@pytest.mark.parametrize("blocks", [1, 8])
def test_vmap_of_a_split_axis_sends_two_all_to_alls(blocks: int) -> None:
    mesh = gdt.create_mesh([("a", 8)], blocks=blocks)
    x = gdt.ones((24, 16), layout=gdt.Layout(["a", None], mesh))
    with gdt.count_collectives() as counter:
        gdt.vmap(lambda row: row * 2)(x)
    assert counter.by_kind == {"all_to_all": 2}
    assert counter.bytes == 2 * x.nbytes * 7 // 8


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_gradients_of_every_example(mesh: gdt.Mesh) -> None:
    rng = np.random.default_rng(1)
    w, x, y = (
        rng.standard_normal((3, 2)),
        rng.standard_normal((11, 3)),
        rng.standard_normal((11, 2)),
    )
    weights = {"w": placed(w, mesh, 2)}
    batch = gdt.Layout([mesh.axis_names[0], None], mesh)
    rows = [gdt.asarray(a, layout=batch) for a in (x, y)]
    loss = lambda p, x, y: gdt.sum((x @ p["w"] - y) ** 2)
    examples = gdt.vmap(gdt.grad(loss), in_axes=(None, 0, 0))(weights, *rows)["w"]
    want = 2 * x[:, :, None] * (x @ w - y)[:, None, :]
    np.testing.assert_allclose(examples.numpy(), want, atol=1e-12)
    total = gdt.grad(lambda p: gdt.sum(gdt.vmap(loss, in_axes=(None, 0, 0))(p, *rows)))
    np.testing.assert_allclose(total(weights)["w"].numpy(), want.sum(0), atol=1e-12)


def test_vmap_takes_trees_names_numbers_and_nothing() -> None:
    x, many = np.arange(6.0).reshape(3, 2), np.arange(3)
    f = lambda pair, scale, *, shift: (pair["a"] * scale + shift, 2.0)
    axes = ({"a": 0, "b": None}, None)
    tree = {"a": gdt.asarray(x), "b": gdt.ones(7)}
    scaled, twos = gdt.vmap(f, axes)(tree, 10.0, shift=gdt.asarray(many))
    assert scaled.tolist() == (10 * x + many[:, None]).tolist() and twos.tolist() == [2.0] * 3
    assert gdt.vmap(lambda row: row.sum())(x).tolist() == x.sum(1).tolist()
    nested = gdt.vmap(gdt.vmap(lambda a, b: a * b, (0, None)), (None, 0))
    assert nested(many, x[0]).tolist() == np.outer(x[0], many).tolist()
    empty = gdt.vmap(lambda row: (row.sum(), row[:1]), out_axes=(0, 1))(gdt.ones((0, 2), "float32"))
    assert [e.shape for e in empty] == [(0,), (1, 0)] and empty[0].dtype == np.float32


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (gdt.vmap(gdt.sum, in_axes=(0, 0)), ArgumentError, "2 entries for 1 arg"),
        (gdt.vmap(gdt.sum, in_axes=None), ArgumentError, "maps no argument"),
        (lambda x: gdt.vmap(gdt.add)(x, x[:1]), ShapeError, "differ in length: {'argument 0': 3"),
        (gdt.vmap(gdt.sum, in_axes=2), AxisError, "axis 2 is out of range"),
        (lambda x: gdt.vmap(gdt.add)(x, 1.0), ArgumentError, "an argument that is a float"),
        (gdt.vmap(gdt.sum, out_axes=None), ArgumentError, "out_axes is None"),
        (gdt.vmap(gdt.sum, in_axes=("a",)), GdtError, "in_axes holds 'a'"),
        (gdt.vmap(gdt.sum, in_axes=([0],)), ArgumentError, "a list of 1 in the"),
        (gdt.vmap(lambda r: r[: int(r[0])]), ShapeError, "differ in shape"),
    ],
)
def test_axes_that_do_not_fit(
    call: Callable[[Any], Any], kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        call(gdt.asarray([[0.0, 1.0], [1.0, 1.0], [2.0, 1.0]]))


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_no_slices_are_stacked_along_any_axis(axis: int) -> None:
    result = gdt.vmap(lambda x: x * 2.0, out_axes=axis)(gdt.zeros((0, 3, 4)))
    assert result.shape == np.moveaxis(np.zeros((0, 3, 4)), 0, axis).shape
