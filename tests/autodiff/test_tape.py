"""What a tape records and refuses; what a differentiated function may close over, and be given."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.autodiff.reverse_mode import GradientWarning
from gdt.engine.op import Op
from gdt.errors import GdtError, GradientError

WHOLE = np.arange(1.0, 13.0).reshape(3, 4)


@pytest.fixture(params=[1, 4])
def x(request: pytest.FixtureRequest) -> gdt.DistributedArray:
    mesh = gdt.create_mesh([("a", 2), ("b", 2)], blocks=request.param)
    return gdt.asarray(WHOLE, layout=gdt.Layout(["a", "b"], mesh))


def test_an_array_in_the_closure_is_a_constant(x: gdt.DistributedArray) -> None:
    inner = gdt.grad(lambda b: gdt.mean(x) * gdt.sum(b * b))
    np.testing.assert_allclose(inner(x).numpy(), 2 * WHOLE * WHOLE.mean())


def test_an_outer_gradient_sees_the_closure_and_the_argument(x: gdt.DistributedArray) -> None:
    outer = gdt.grad(
        lambda a: gdt.sum(a * gdt.grad(lambda b: gdt.mean(a) * gdt.sum(b * b))(a)),
    )
    want = 4 * WHOLE * WHOLE.mean() + 2 * (WHOLE**2).sum() / WHOLE.size
    np.testing.assert_allclose(outer(x).numpy(), want)


def test_a_tape_around_grad_and_vjp(x: gdt.DistributedArray) -> None:
    with gdt.GradientTape(persistent=True) as tape:
        by_grad = gdt.sum(gdt.grad(lambda b: gdt.sum(b**3))(x))
        by_vjp = gdt.sum(gdt.vjp(lambda b: b**3, x)[1](gdt.ones_like(x))[0])
    np.testing.assert_allclose(tape.gradient(by_grad, x).numpy(), 6 * WHOLE)
    np.testing.assert_allclose(tape.gradient(by_vjp, x).numpy(), 6 * WHOLE)


def test_one_array_as_two_arguments(x: gdt.DistributedArray) -> None:
    first, second = gdt.grad(lambda a, b: gdt.sum(a * a * b), argnums=(0, 1))(x, x)
    np.testing.assert_allclose(first.numpy(), 2 * WHOLE**2)
    np.testing.assert_allclose(second.numpy(), WHOLE**2)


@pytest.mark.parametrize("argnums", [3, -2, "a", (0, 5), 1.5, True])
def test_argnums_that_name_no_argument(x: gdt.DistributedArray, argnums: object) -> None:
    with pytest.raises(GdtError, match=r"grad: argnums is"):
        gdt.grad(gdt.sum, argnums=argnums)(x)  # type: ignore[arg-type]


def test_aux_holds_anything() -> None:
    def loss(x: gdt.DistributedArray) -> tuple[gdt.DistributedArray, dict[str, object]]:
        return gdt.sum(x * x), {"n": 2, "x": x + 1, "rest": [None, "name", np.ones(2)]}

    (value, aux), gradient = gdt.value_and_grad(loss, has_aux=True)(gdt.asarray([1.0, 2.0]))
    assert value.item() == 5.0 and gradient.tolist() == [2.0, 4.0]
    assert aux["n"] == 2 and aux["x"].tolist() == [2.0, 3.0]
    assert aux["rest"][:2] == [None, "name"] and aux["rest"][2].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("returned", "has_aux", "problem"),
    [
        (lambda s: s, True, "returns a DistributedArray, not the pair"),
        (lambda s: (s, s, s), True, r"returns a tuple of 3, not the pair \(value, aux\)"),
        (lambda s: (s, s), False, r"value: tuple[^$]*has_aux=True"),
    ],
)
def test_a_function_that_returns_no_value_and_aux(
    returned: Callable[[Any], Any], has_aux: bool, problem: str
) -> None:
    f = gdt.value_and_grad(lambda x: returned(gdt.sum(x)), has_aux=has_aux)
    with pytest.raises(GradientError, match=problem):
        f(gdt.ones(3))


def test_errors_of_grad_bear_its_name() -> None:
    with pytest.raises(GradientError, match=r"grad: the function does not return a scalar array"):
        gdt.grad(lambda x: x * 2)(gdt.ones(3))
    with pytest.raises(GradientError, match=r"grad: argnums is 3, of 1 positional argument"):
        gdt.grad(gdt.sum, 3)(gdt.ones(3))


def test_arrays_of_numpy_are_no_sources() -> None:
    with pytest.raises(GdtError, match="an ndarray is no distributed array"):
        gdt.grad(gdt.sum)(np.ones(3))


def test_a_copy_has_a_gradient() -> None:
    x = gdt.asarray([1.0, 2.0, 3.0])
    assert gdt.grad(lambda x: gdt.sum(x * x.copy()))(x).tolist() == [2.0, 4.0, 6.0]


def test_a_tape_that_records_is_not_entered_again() -> None:
    tape = gdt.GradientTape()
    with tape, pytest.raises(GradientError, match="recording already"), tape:
        pass


def test_a_persistent_tape_records_a_gradient_inside_its_block() -> None:
    x = gdt.asarray([1.0, 2.0, 3.0])
    with gdt.GradientTape(persistent=True) as tape:
        g = tape.gradient(gdt.sum(x**3), x)  # 3 x^2
        z = gdt.sum(g * x)
    assert tape.gradient(z, x).tolist() == [9.0, 36.0, 81.0]


def test_a_tape_that_is_used_up_inside_its_block_records_no_more() -> None:
    x = gdt.asarray([1.0, 2.0, 3.0])
    with gdt.GradientTape() as tape:
        g = tape.gradient(gdt.sum(x**3), x)
        assert (g * x).tolist() == [3.0, 24.0, 81.0]
    with pytest.raises(GradientError, match="used up"):
        tape.gradient(g, x)


def test_values_that_numpy_took_from_a_tape_are_an_error() -> None:
    w = gdt.asarray([3.0, 4.0])
    losses = [
        lambda w: gdt.sum(w) + 10 * np.asarray(w).max(),
        lambda w: gdt.sum(w * w) * np.asarray(w * 2).min(),
        lambda w: gdt.sum(gdt.asarray([w[0], w[1]]) * w),
    ]
    for loss in losses:
        with pytest.raises(
            GradientError, match=rf"line \d+ of {re.escape(__file__)} \(.*\) fetched"
        ):
            gdt.grad(loss)(w)
    with gdt.GradientTape() as tape:
        total = gdt.sum(w) + np.asarray(w).max()
    with pytest.raises(GradientError, match=r"x\.numpy\(\)"):
        tape.gradient(total, w)


def test_values_that_are_taken_on_purpose_or_depend_on_no_source_are_constants() -> None:
    w, x = gdt.asarray([3.0, 4.0]), gdt.asarray([1.0, 2.0])
    for norm in (
        lambda w: np.linalg.norm(w.numpy()), lambda w: np.linalg.norm(gdt.stop_gradient(w)),
        lambda w: float(gdt.sqrt(gdt.sum(w * w)).numpy()), lambda w: 5 * len(np.where(w > 3.5)[0]),
    ):  # fmt: skip
        assert gdt.grad(lambda w, n=norm: gdt.sum(w) * n(w))(w).tolist() == [5.0, 5.0]
    with gdt.GradientTape() as tape:
        loss = gdt.sum(w * np.asarray(x * 2))
        assert "22" in f"{loss}" and str(loss)
    assert tape.gradient(loss, w).tolist() == [2.0, 4.0]


def test_output_gradients_are_as_many_as_targets() -> None:
    x = gdt.ones(3)
    with gdt.GradientTape() as tape:
        y, z = x * x, x + x
    with pytest.raises(GradientError, match="1 output gradients for 2 targets"):
        tape.gradient([y, z], x, [gdt.ones(3)])


def test_sources_on_two_meshes(x: gdt.DistributedArray) -> None:
    """Reductions on different meshes do not travel together."""
    other = gdt.create_mesh([("a", 3)], blocks=1 if len(x.blocks) == 1 else 3)
    w = [gdt.ones(4, layout=gdt.Layout([None], mesh)) for mesh in (x.mesh, other)]
    y = gdt.asarray(WHOLE, layout=gdt.Layout(["a", None], other))
    with gdt.GradientTape() as tape:
        inner = gdt.relayout(gdt.sum(y * w[1]), gdt.Layout([], x.mesh))
        target = gdt.sum(gdt.relayout(x, gdt.Layout(["a", None], x.mesh)) * w[0]) * inner
    for g, mesh in zip(tape.gradient(target, w), (x.mesh, other), strict=True):
        assert g.layout is gdt.Layout([None], mesh)
        np.testing.assert_allclose(g.numpy(), WHOLE.sum(axis=0) * WHOLE.sum())


def test_repr_of_a_tape() -> None:
    x = gdt.ones((2,))
    with gdt.GradientTape() as tape:
        y = gdt.sum(x * 2.0)
    assert repr(tape) == "<gdt.GradientTape, 2 ops recorded>"
    tape.gradient(y, x)
    assert repr(tape) == "<gdt.GradientTape, used up>"


@pytest.mark.parametrize(
    "number", [float, lambda x: x.item(), lambda x: x.tolist(), lambda x: complex(x).real]
)
def test_a_gradient_that_ends_at_a_python_scalar_warns_once_for_the_line(
    number: Callable[[gdt.DistributedArray], float],
) -> None:
    def loss(w):
        return gdt.sum(w) * number(gdt.sum(w))

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            assert gdt.grad(loss)(gdt.ones(3)).tolist() == [3.0, 3.0, 3.0]
    (warning,) = caught
    assert warning.category is GradientWarning
    assert re.search(r"Python scalar.*float64\[\].*x\.numpy\(\)", str(warning.message))
    code = loss.__code__ if number is float else number.__code__
    line = code.co_firstlineno + (number is float)
    assert (warning.filename, warning.lineno) == (__file__, line)


def test_a_python_scalar_of_an_array_before_it_depended_on_a_source_is_silent() -> None:
    def loss(w):
        total = gdt.asarray(2.0)
        factor = float(total)
        total[...] = gdt.sum(w)
        return total * factor

    assert gdt.grad(loss)(gdt.ones(3)).tolist() == [2.0, 2.0, 2.0]


def test_scalars_that_do_not_depend_on_the_sources_and_printing_are_silent() -> None:
    x = gdt.ones(3)

    def loss(w):
        total = gdt.sum(w)
        f"{total:.3f}", repr(total), total.numpy()
        return total * float(gdt.sum(x)) * x.sum().item()

    assert gdt.grad(loss)(gdt.ones(3)).tolist() == [9.0, 9.0, 9.0]


def test_a_gradient_through_an_op_that_declares_none_is_an_error() -> None:
    def doubled(xp, x, /):
        return x * 2

    double, constant = Op(doubled, "... -> ..."), Op(doubled, "... -> ...")
    constant.vjp(None)
    x = gdt.ones(3)
    with pytest.raises(
        GradientError, match=r"doubled: .* declares no gradient\n  operand 0: float64"
    ):
        gdt.grad(lambda x: gdt.sum(double(x) + x))(x)
    assert gdt.grad(lambda x: gdt.sum(double(gdt.stop_gradient(x)) + x))(x).tolist() == [1.0] * 3
    assert gdt.grad(lambda x: gdt.sum(constant(x) + x))(x).tolist() == [1.0] * 3


def test_gradients_of_a_dict_have_the_order_of_its_keys() -> None:
    weights = {name: gdt.ones(2) for name in ("w", "b", "a")}
    gradients = gdt.grad(lambda w: gdt.sum(w["w"] * w["b"] + w["a"]))(weights)
    assert list(gradients) == ["w", "b", "a"]


def test_sources_on_which_nothing_depends() -> None:
    x, y = gdt.ones(2), gdt.ones((3,), "float32")
    for unconnected, expected in (("zero", [0.0] * 3), ("none", None)):
        with gdt.GradientTape() as tape:
            z = gdt.sum(x * 3)
        of_x, of_y = tape.gradient(z, [x, y], unconnected=unconnected)
        assert of_x.tolist() == [3.0, 3.0]
        assert of_y is None if expected is None else of_y.tolist() == expected
        assert of_y is None or of_y.type is y.type
    with gdt.GradientTape() as tape:
        z = gdt.sum(x * 3)
    with pytest.raises(GradientError, match="does not depend on source 1"):
        tape.gradient(z, [x, y])


def test_gradients_of_what_does_not_depend_are_zeros(x: gdt.DistributedArray) -> None:
    linear = gdt.grad(lambda a: gdt.sum(3 * a))
    for _ in range(3):  # op by op, recorded, and replayed
        first, second = gdt.grad(lambda a, b: gdt.sum(b * 3), argnums=(0, 1))(x, x)
        assert first.type is x.type and not first.numpy().any() and (second.numpy() == 3).all()
        value, gradient = gdt.value_and_grad(lambda a: gdt.sum(x))({"a": x})
        assert float(value) == 78.0 and not gradient["a"].numpy().any()
        assert not gdt.grad(lambda a: gdt.sum(x * linear(a)))(x).numpy().any()


def test_parameters_that_no_op_reads_have_no_gradient() -> None:
    model = gdt.nn.Sequential(gdt.nn.Dense(2, 2), gdt.nn.Dense(2, 2))
    loss = lambda m: gdt.sum(m.layers[0](gdt.ones((1, 2))))
    with pytest.raises(GradientError, match=r"does not depend on source 'layers\.1\.bias'"):
        gdt.grad(loss)(model)
    both = gdt.grad(lambda m: loss(m) + 0 * gdt.sum(gdt.stop_gradient(m(gdt.ones((1, 2))))))
    gradients = both(model)  # the outer part of a product with a Hessian reads in the same way
    assert not gradients["layers.1.weight"].numpy().any()
    assert gradients["layers.0.bias"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_source_and_its_resolved_value_share_a_gradient(blocks: int) -> None:
    mesh = gdt.create_mesh([("a", 4)], blocks=blocks)
    x = gdt.sum(
        gdt.asarray(np.arange(8.0).reshape(4, 2), layout=gdt.Layout(["a", None], mesh)), axis=0
    )
    assert x.layout.partial == {"a": "sum"}
    for _ in range(3):  # op by op, recorded, and replayed
        with gdt.GradientTape() as tape:
            y = gdt.sum(x * 2.0) + gdt.sum(gdt.relu(x.resolve()) * 5.0)
        assert tape.gradient(y, x).tolist() == [7.0, 7.0]


# ---------------------------------------------------------------- declarations that do not fit


def product_with(*gradients: Any, joint: Any = None) -> gdt.DistributedArray:
    """Return the gradient of x * x by a function of two operands with these gradients."""

    @gdt.custom_vjp
    def product(a: Any, b: Any) -> Any:
        return a * b

    product.vjp(*gradients, joint=joint)
    return gdt.grad(lambda x: gdt.sum(product(x, x)))(gdt.asarray([1.0, 2.0, -3.0]))


@pytest.mark.parametrize(
    ("gradients", "joint", "message"),
    [
        ((lambda g, out, a, b: g * b,), None, "1 gradients, and none for operand 1"),
        ((None,) * 3, None, r"3 gradients for product\(a, b\)"),
        ((), None, r"0 gradients for product\(a, b\)"),
        ((3, None), None, "of type int, and no function"),
        ((None, None), lambda g, *others: (g, g), "and a joint one"),
        ((lambda g, out, a, b: gdt.sum(g), None), None, "operand 0 returns another shape"),
        ((lambda g, out, a, b: gdt.concat([g, g]), None), None, "operand 0 returns another shape"),
        ((None, lambda g, out, a, b: 1.0), None, "operand 1 returns type float"),
        ((lambda g, out, a, b: g.numpy(), None), None, "operand 0 returns type ndarray"),
        ((lambda g, out, a: g, None), None, "operand 0 raises TypeError"),
        ((), lambda g, out, a, b: g, "no tuple of 2 cotangents"),
        ((), lambda g, out, a, b: (g,), "no tuple of 2 cotangents"),
    ],
)
def test_gradients_that_do_not_fit_the_operands(gradients: Any, joint: Any, message: str) -> None:
    with pytest.raises(GdtError, match=rf"^product\.vjp: .*{message}"):
        product_with(*gradients, joint=joint)


def test_gradients_that_are_declared_anew_are_those_of_recorded_passes_too() -> None:
    @gdt.custom_vjp
    def scaled(x: Any, factor: float = 2.0) -> Any:
        return x * factor

    gradient = gdt.function(gdt.grad(lambda x: gdt.sum(scaled(x))))
    for slope in (7.0, 3.0):
        scaled.vjp(lambda g, out, x, slope=slope: g * slope)
        for _ in range(4):
            x = gdt.asarray([1.0, 2.0])
            assert gdt.grad(lambda x: gdt.sum(scaled(x)))(x).tolist() == [slope, slope]
            assert gradient(x).tolist() == [slope, slope]


def body(xp: Any, x: Any, /) -> Any:
    return x * 100


def without_operands(xp: Any, x: Any) -> Any:
    return x


def mean(xp: Any, x: Any, /) -> Any:
    return x * 100


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda: gdt.op("... -> ...")(mean), "gdt has a function 'mean'"),
        (lambda: gdt.op("... d")(body), "has no arrow"),
        (lambda: gdt.op("... d -> ... d", hole="d")(body), "no option hole"),
        (lambda: gdt.op("... d -> ... d", whole="e")(body), "whole= names e"),
        (lambda: gdt.op("... -> ...")(without_operands), "no operands"),
        (lambda: gdt.op(body)(gdt.ones(3)), "not a value of type DistributedArray"),  # type: ignore[call-overload]
    ],
)
def test_declarations_of_ops_that_do_not_fit(declare: Callable[[], Any], message: str) -> None:
    with pytest.raises(GdtError, match=message):
        declare()
    assert np.mean(gdt.asarray([1.0, 2.0])).tolist() == 1.5  # type: ignore[call-overload]


def test_a_relayout_of_what_an_op_has_moved_has_second_derivatives(rng) -> None:
    mesh = gdt.create_mesh([("a", 2), ("b", 2)])
    x, y = rng.normal(size=(4, 4)), rng.normal(size=(4, 4))

    def second(layouts):
        def loss(x, y):
            moved = x * y
            return gdt.sum(gdt.tanh(gdt.relayout(x, layouts[2]) + moved))

        squares = lambda x, y: gdt.sum(gdt.grad(loss)(x, y) ** 2)
        return gdt.grad(squares)(
            *[gdt.asarray(v, layout=l) for v, l in zip((x, y), layouts, strict=False)]
        )

    specs = (["a", None], ["b", "a"], [None, "a"])
    got = second([gdt.Layout(spec, mesh) for spec in specs])
    one = gdt.create_mesh([("z", 1)])
    np.testing.assert_allclose(got, second([gdt.Layout([None, None], one)] * 3))
