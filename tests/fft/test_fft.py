"""Fourier transforms: gradients, what they send, layouts of results, and wrong arguments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import gdt
from gdt.errors import ArgumentError, AxisError, DtypeError, ShapeError
from gdt.testing import Oracle, Sample, choices, meshes

MESHES = meshes()
RNG = np.random.default_rng(5)


def real_parts(name: str, **static: Any) -> Callable[..., Any]:
    """Make a function from the real and imaginary part of an array to those of its transform."""

    def parts(real: Any, *imaginary: Any) -> tuple[Any, ...]:
        x = real + 1j * imaginary[0] if imaginary else real
        out = getattr(gdt.fft, name)(x, **static)
        return (gdt.real(out), gdt.imag(out)) if out.dtype.kind == "c" else (out,)

    return parts


GRADIENTS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("fft", (16,), {"norm": "ortho"}),
    ("ifft", (11,), {}),
    ("fftn", (5, 4), {"s": (3, 6), "axes": (0, 1)}),
    ("irfft", (9,), {"n": 15}),
    ("irfft2", (4, 5), {"norm": "forward"}),
    ("hfft", (3, 4), {"axis": 0}),
    ("rfft", (81,), {"norm": "ortho"}),
    ("irfft", (41,), {"n": 81}),
    ("rfftn", (4, 6), {"norm": "ortho"}),
    ("ihfft", (5, 3), {"axis": 0, "n": 4}),
]


@pytest.mark.parametrize(("name", "shape", "static"), GRADIENTS, ids=[g[0] for g in GRADIENTS])
def test_gradients_are_those_of_finite_differences(
    name: str, shape: tuple[int, ...], static: dict[str, Any]
) -> None:
    count = 1 if name in ("rfft", "rfftn", "ihfft") else 2
    sample = Sample(tuple(RNG.standard_normal(shape) for _ in range(count)))
    oracle = Oracle(real_parts(name, **static), sample)
    for mesh in (MESHES[0], MESHES[-1]):
        for i, layouts in enumerate(choices(mesh, [len(shape)] * count, limit=3, seed=1)):
            oracle.check(mesh, layouts, second=i == 1)


@pytest.mark.parametrize("name", ["fft2", "ifft2", "rfft2", "irfft2", "ifftn", "ihfft"])
def test_relatives_are_those_of_numpy(name: str) -> None:
    values = RNG.standard_normal((5, 8))
    for mesh in MESHES[::3]:
        for (layout,) in choices(mesh, [2], limit=2, seed=len(name)):
            out = getattr(gdt.fft, name)(gdt.asarray(values, layout=layout), norm="ortho")
            expected = getattr(np.fft, name)(values, norm="ortho")
            assert out.dtype == expected.dtype
            np.testing.assert_allclose(out.numpy(), expected, atol=1e-13)


def sent(function: Callable[[], Any]) -> list[tuple[str, int]]:
    """The kind and the bytes of each collective of a call that sends more than 16 KiB."""
    rows = gdt.explain(function).rows
    return [(c.kind, c.bytes) for row in rows for c in row.collectives if c.bytes > 1 << 14]


def test_transforms_send_what_transposes_send() -> None:
    mesh = gdt.create_mesh([("x", 8)])
    image = gdt.ones((256, 256), layout=gdt.Layout(["x", None], mesh))
    spectrum = 256 * 256 * 16
    assert sent(lambda: gdt.fft.fft(image)) == []
    assert sent(lambda: gdt.fft.fft2(image)) == [("all_to_all", spectrum * 7 // 8)]
    assert gdt.fft.fft2(image).layout.sharding_specs == [gdt.UNSHARDED, "x"]
    assert gdt.fft.ifft2(gdt.fft.fft2(image)).layout is image.layout
    signal = gdt.ones(256 * 256, complex, layout=gdt.Layout(["x"], mesh))
    assert sent(lambda: gdt.fft.fft(signal)) == [("all_to_all", spectrum * 7 // 8)] * 3
    assert gdt.fft.fft(signal).layout is signal.layout


@pytest.mark.parametrize("n", [4096, 4095, 4100])
def test_no_device_holds_a_split_signal_whole(n: int) -> None:
    """4100 elements are 50 * 82, and shards of both hold padding."""
    mesh = gdt.create_mesh([("x", 8)])
    signal = gdt.ones(n, layout=gdt.Layout(["x"], mesh))
    for row in gdt.explain(lambda: gdt.fft.fft(signal)).rows:
        assert all(c.kind != "all_gather" for c in row.collectives), row
        for result in row.results:
            split = result.layout.num_shards(0) * (result.ndim > 1 and result.layout.num_shards(-1))
            assert max(split, result.layout.num_shards(0)) == 8 or result.size == 1, row


@pytest.mark.parametrize("n", [4099, 2 * 4099, 63, 5])
@pytest.mark.parametrize("name", ["fft", "ifft", "rfft", "irfft"])
def test_lengths_without_two_factors_are_gathered_once(name: str, n: int) -> None:
    """4099 is prime; 63 and 5 are less than the square of 8 shards, and 5 less than the shards."""
    layout = gdt.Layout(["x"], gdt.create_mesh([("x", 8)]))
    size = n // 2 + 1 if name == "irfft" else n
    values = RNG.standard_normal(size) + (0 if name == "rfft" else 1j)
    x, static = gdt.asarray(values, layout=layout), {"n": n} if name == "irfft" else {}
    with gdt.count_collectives() as counter:
        out = getattr(gdt.fft, name)(x, **static)
    assert [c.kind for c in counter] == ["all_gather"] and out.layout is layout
    assert counter.bytes == 7 * -(-size // 8) * 8 * x.itemsize
    expected = getattr(np.fft, name)(values, **static)
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-10)


def test_an_axis_that_is_named_twice_is_transformed_twice() -> None:
    x = np.random.default_rng(1).standard_normal((4, 5))
    for name, axes in (
        ("rfftn", (1, 1)),
        ("rfftn", (1, 0, 1)),
        ("fftn", (0, 0)),
        ("irfftn", (1, 1)),
    ):
        expected = getattr(np.fft, name)(x, axes=axes)
        result = getattr(gdt.fft, name)(x, axes=axes).numpy()
        np.testing.assert_allclose(result, expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(ShapeError, match="name an axis twice, and s is"):
        gdt.fft.fftn(x, s=(2, 3), axes=(0, 0))


@pytest.mark.parametrize("n", [127 * 129, 128 * 128])
@pytest.mark.parametrize("name", ["fft", "rfft", "irfft"])
def test_transforms_hold_three_shares_beside_the_operand(name: str, n: int) -> None:
    """Shares of complex numbers: of all, or for real transforms of an even length of half as
    many."""
    layout = gdt.Layout(["x"], gdt.create_mesh([("x", 8)], blocks=8))
    values = RNG.standard_normal(n) if name == "rfft" else RNG.standard_normal(n) + 1j
    values = values[: n // 2 + 1] if name == "irfft" else values
    static = {"n": n} if name == "irfft" else {}
    x = gdt.asarray(values, layout=layout)
    share = (n if name == "fft" or n % 2 else n // 2 + 1) * 16 / 8
    with gdt.testing.peak_memory([x]) as memory:
        out = getattr(gdt.fft, name)(x, **static)
    assert memory.peak <= 4.3 * share  # with an eighth of recycled memory, and padding
    assert out.layout is layout
    expected = getattr(np.fft, name)(values, **static)
    np.testing.assert_allclose(out.numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("n", [81, 99, 135, 89])
def test_real_transforms_of_odd_lengths_and_few_rows_are_numpys(n: int) -> None:
    """Of two rows of numbers each; some devices hold no row, and 89 is prime."""
    for mesh in MESHES:
        for layout in (
            gdt.Layout([None, mesh.axis_names], mesh),
            gdt.Layout([mesh.axis_names, None], mesh),
        ):
            real = RNG.standard_normal((n, 2) if layout.dims[0] else (2, n))
            axis = 0 if layout.dims[0] else 1
            for norm in ("backward", "ortho", "forward"):
                out = gdt.fft.rfft(gdt.asarray(real, layout=layout), axis=axis, norm=norm)
                half = np.fft.rfft(real, axis=axis, norm=norm) + 1j
                np.testing.assert_allclose(out.numpy() + 1j, half, atol=1e-12)
                back = gdt.fft.irfft(gdt.asarray(half, layout=layout), n, axis=axis, norm=norm)
                expected = np.fft.irfft(half, n, axis=axis, norm=norm)
                np.testing.assert_allclose(back.numpy(), expected, atol=1e-12)


def test_numpys_functions_are_gdts() -> None:
    x = gdt.asarray(RNG.standard_normal((3, 4)))
    for name in ("fft", "rfftn", "fftshift"):
        out = getattr(np.fft, name)(x)
        assert isinstance(out, gdt.DistributedArray)
        assert np.allclose(out.numpy(), getattr(np.fft, name)(x.numpy()))


WRONG: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: gdt.fft.fft(gdt.ones(3), axis=1), AxisError, "fft.fft: axis 1 is out of range"),
    (lambda: gdt.fft.fft(gdt.ones(())), AxisError, "axis -1 is out of range for rank 0"),
    (lambda: gdt.fft.fft(gdt.ones(0)), ShapeError, "a transform of 0 elements"),
    (lambda: gdt.fft.fft(gdt.ones(3), n=0), ShapeError, "a transform of 0 elements"),
    (lambda: gdt.fft.fft(gdt.ones(3), n=True), ShapeError, "a transform of True elements"),
    (lambda: gdt.fft.fft(gdt.ones(3), n=-1), ShapeError, "a transform of -1 elements"),
    (lambda: gdt.fft.hfft(gdt.ones(3), n=-1), ShapeError, "a transform of -1 elements"),
    (lambda: gdt.fft.ihfft(gdt.ones(3), n=-1), ShapeError, "a transform of -1 elements"),
    (lambda: gdt.fft.irfft(gdt.ones(1)), ShapeError, "a transform of 0 elements"),
    (lambda: gdt.fft.ifft(gdt.ones(3), norm="none"), ArgumentError, "norm is 'none'"),
    (lambda: gdt.fft.fft(gdt.ones(3), n="4"), ArgumentError, "n is '4', not int"),
    (lambda: gdt.fft.rfft(gdt.ones(3, complex)), DtypeError, "fft.rfft: x is complex"),
    (lambda: gdt.fft.fftn(gdt.ones((3, 3)), s=(2,), axes=(0, 1)), ShapeError, "not one length"),
    (lambda: gdt.fft.rfftn(gdt.ones((3, 3)), axes=()), ShapeError, "no axis to transform"),
    (lambda: gdt.fft.fftfreq(0), ShapeError, "0 is no number of samples"),
    (lambda: gdt.fft.fftfreq(4, dtype=int), DtypeError, "no real floating-point dtype"),
]


@pytest.mark.parametrize(("call", "kind", "text"), WRONG, ids=range(len(WRONG)))
def test_errors_name_what_is_wrong(
    call: Callable[[], Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        call()


@pytest.mark.parametrize("layout", [[None, None], ["x", None], [None, "x"]])
def test_dtypes_of_half_precision_are_numpys(layout: list[Any]) -> None:
    host = RNG.standard_normal((8, 5)).astype(np.float16)
    x = gdt.asarray(host, layout=gdt.Layout(layout, gdt.create_mesh([("x", 4)], blocks=4)))
    for name in ("fft", "rfft", "ihfft", "irfft", "hfft", "irfft2", "fft2"):
        out, expected = getattr(gdt.fft, name)(x), getattr(np.fft, name)(host)
        assert out.dtype == expected.dtype, name
        np.testing.assert_allclose(np.asarray(out), expected, atol=2e-2)


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint16", "int64"])
def test_transforms_of_integers_are_of_double_precision_however_they_are_split(dtype: str) -> None:
    x = RNG.integers(0, 2, (8, 5)).astype(dtype)
    mesh = gdt.create_mesh([("x", 4)])
    for layout in ([None, None], ["x", None], [None, "x"]):
        out = gdt.fft.fft(gdt.asarray(x, layout=gdt.Layout(layout, mesh)), axis=0)
        assert out.dtype == np.complex128
        np.testing.assert_allclose(np.asarray(out), np.fft.fft(x, axis=0), atol=1e-14)
