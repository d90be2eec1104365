"""Mixed precision: products in 16 bits, everything that adds up or remains in float32."""

from __future__ import annotations

from typing import TypeVar

from gdt.arguments import checked
from gdt.errors import ArgumentError, error
from gdt.nn.module import Module

M = TypeVar("M", bound=Module)

DTYPES = ("bfloat16", "float16", "float32", "float64")


@checked
def mixed_precision(model: M, dtype: str | None = "float16") -> M:
    """Let all layers of a model compute their products in `dtype`; return the model.

    dtype: the name of a floating-point dtype, also as Keras' "mixed_bfloat16"; None lets layers
        compute in the dtypes of their arrays again.

    Dense layers, convolutions, attention, recurrent layers and embeddings cast their inputs, and
    their weights at use, and return `dtype`. These stay in float32: parameters and their gradients,
    the optimizer's state, moving averages, the statistics of normalisation, sums within matrix
    products, convolutions and attention (its softmax included), and losses. bfloat16 has the range
    of float32 and 8 bits of precision. float16 has 11, and holds numbers up to 65,504 and none
    below 6e-8, so gradients need `gdt.optim.LossScaling`.

    Raises ArgumentError for another dtype. Sources: Micikevicius et al. 2018, "Mixed precision
    training"; Kalamkar et al. 2019, "A study of bfloat16 for deep learning training".

    >>> model = gdt.nn.mixed_precision(gdt.nn.Sequential(gdt.nn.Dense(4, 3)), "float16")
    >>> model(gdt.ones((2, 4), "float32")).dtype, model[0].weight.dtype
    (dtype('float16'), dtype('float32'))
    """
    if isinstance(dtype, str):
        dtype = dtype.removeprefix("mixed_")
    if dtype is not None and dtype not in DTYPES:
        remedy = f"Use one of {', '.join(DTYPES)}, or None."
        raise error(ArgumentError, f"dtype is {dtype!r}", remedy=remedy)
    for _, module in model.modules():
        module.compute_dtype = dtype
    return model
