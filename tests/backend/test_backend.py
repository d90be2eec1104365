"""Backends: kinds of devices, and what a mesh on them does."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import gdt
from gdt import backend
from gdt.backend.flags import CHUNK, ErrorFlags
from gdt.backend.numpy import NumpyBackend
from gdt.errors import DeviceError, MeshError
from gdt.sharding import devices

made: list[NumpyBackend] = []


def make() -> NumpyBackend:
    made.append(NumpyBackend())
    return made[-1]


@pytest.fixture
def two_devices() -> Iterator[None]:
    """A kind of device of which there are two."""
    made.clear()
    backend.register_backend("pair", make, lambda: 2)
    yield
    backend.unregister_backend("pair")


def test_flags_are_allocated_in_chunks_and_reset_once_their_error_is_raised() -> None:
    chunks: list[np.ndarray] = []

    def empty(length: int) -> np.ndarray:
        chunks.append(np.zeros(length, np.uint64))
        return chunks[-1]

    flags = ErrorFlags(empty)
    made = [flags.new(lambda n, i=i: ValueError(f"{i}: {n}")) for i in range(2 * CHUNK + 1)]
    assert len(chunks) == 3 and {flag.shape for flag in made} == {(1,)}
    flags.check()
    for i in (CHUNK, 2 * CHUNK):
        made[i][0] = 7
        with pytest.raises(ValueError, match=f"{i}: 7"):
            flags.check()
        flags.check()


@pytest.mark.usefixtures("two_devices")
def test_coordinates_share_the_devices_that_are_named() -> None:
    one = gdt.create_mesh([("x", 4)], devices=["pair:0"])
    two = gdt.create_mesh([("x", 4)], devices=["pair:0", "pair:1"])
    assert (len(one.blocks), len(two.blocks)) == (1, 2)
    assert two.devices == ("pair:0", "pair:0", "pair:1", "pair:1")
    assert (one.device_kind, one.device_type()) == ("pair", "GPU")
    for mesh in (one, two):
        x = gdt.arange(12, layout=gdt.Layout(["x"], mesh))
        assert (x * 2 - x[::-1]).tolist() == (np.arange(12) * 2 - np.arange(12)[::-1]).tolist()
    assert len(made) == 1
    assert backend.backend_of(one) is backend.backend_of(two) is made[0]


@pytest.mark.usefixtures("two_devices")
def test_devices_that_are_not_there_are_refused() -> None:
    with pytest.raises(DeviceError, match="device 'pair:2' does not exist: 2 device"):
        gdt.create_mesh([("x", 1)], devices=["pair:2"])
    with pytest.raises(MeshError, match="one mesh has devices of one kind"):
        gdt.create_mesh([("x", 2)], devices=["pair:0", "cpu:0"])
    with pytest.raises(MeshError, match="3 coordinates does not fit 2 device"):
        gdt.create_mesh([("x", 3)], devices=["pair:0", "pair:1"])


def test_a_kind_that_is_not_registered_names_no_device() -> None:
    assert "pair" not in devices.DEVICE_COUNTS
    with pytest.raises(DeviceError, match="does not name a device"):
        gdt.create_mesh([("x", 1)], devices=["pair:0"])
