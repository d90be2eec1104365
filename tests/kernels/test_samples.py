"""Every op with a kernel equals itself on whole arrays on the emulated device, for all samples."""

from __future__ import annotations

import zlib

import pytest

import gdt
from gdt.array.registry import FUNCTIONS
from gdt.engine.op import OPS
from gdt.testing import Oracle, choices

from ..samples import SAMPLES
from .emulation import EmulatedBackend

# Updates have no samples of their own: gdt.optim calls them with memory to write into.
OPS_WITH_KERNELS = {
    name for name, op in OPS.items() if op.declaration.kernel and not op.declaration.donated
} - {"attention_of_tiles", "attention_gradient"}  # test_attention: samples are float64
BY_FUNCTION = {  # of which users call the op
    "fused_cross_entropy": "sparse_softmax_cross_entropy_with_logits",
    "convolve_tiles": "convolution",
    "convolution_kernel_gradient": "convolution",
    "convolution_input_gradient": "transposed_convolution",
}
UNPREPARED = {"cross_entropy_of_split"}  # whose kernels work together with functions of CuPy
NAMES = sorted({BY_FUNCTION.get(name, name) for name in OPS_WITH_KERNELS})
CHOICES, WITH_GRADIENTS = 2, 1  # of layouts for each sample


@pytest.mark.parametrize("devices", [["emu:0"], [f"emu:{i}" for i in range(4)]], ids=len)
@pytest.mark.parametrize("name", NAMES)
def test_op_with_a_kernel_equals_itself_on_whole_arrays(
    name: str, devices: list[str], emulated: EmulatedBackend
) -> None:
    mesh = gdt.create_mesh([("x", 2), ("y", 2)], devices=devices)
    emulated.runner.ran.clear()
    emulated.runner.prepared = 0
    for n, sample in enumerate(SAMPLES[name]):
        oracle = Oracle(FUNCTIONS[name], sample)
        seed = zlib.crc32(f"{name} {n} {mesh.grid}".encode())
        ranks = [a.ndim for a in sample.arrays]
        for i, chosen in enumerate(choices(mesh, ranks, limit=CHOICES, seed=seed)):
            oracle.check(mesh, chosen, gradients=i < WITH_GRADIENTS)
    assert emulated.runner.ran, "no sample ran a kernel"
    assert bool(emulated.runner.prepared) is (name not in UNPREPARED)
