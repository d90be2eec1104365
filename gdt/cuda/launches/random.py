"""Launches of random.cu: random numbers that equal the CPU's to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from gdt.cuda.launches.calls import Array, c_type, ceil_div, named_call
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import Instance, constants

FILE = "random.cu"
WORDS = ("unsigned", "unsigned long long")
WORDS_OF_COUNTER = 4  # words of 32 bits that one counter gives
SHORT_RANGE = 2**16  # an integer out of at most this many takes one word of 32 bits, else of 64
DRAWS = {  # by the C type of the result: the C types of the word drawn and of the arithmetic
    "float": ("unsigned", "float"),
    "double": ("unsigned long long", "double"),
    "half_t": ("unsigned", "float"),
    "bfloat16_t": ("unsigned", "float"),
}
INTEGERS = (
    "bool",
    "signed char",
    "unsigned char",
    "int",
    "unsigned",
    "long long",
    "unsigned long long",
)


def random_instances() -> Iterator[Instance]:
    """Yield every instance that this module launches."""
    yield from (Instance(FILE, "random_bits", (word,)) for word in WORDS)
    for kernel, t in product(("random_uniform", "random_normal", "random_truncated"), DRAWS):
        yield Instance(FILE, kernel, (t, *DRAWS[t]))
    for t, word in product(INTEGERS, WORDS):
        yield Instance(FILE, "random_integers", (t, word))
    yield Instance(FILE, "random_bernoulli")


def random(
    kernel: str,
    out: Array,
    start: Array,
    key: Array,
    stream: Array,
    *,
    low: int = 0,
    high: int = 0,
    p: float = 0.0,
) -> list[KernelCall]:
    """Draw the numbers `out`.

    kernel: "bits", "uniform", "normal", "truncated", "integers" or "bernoulli".
    out: (rows, length).
    start: (rows,), int64, the global index of each row's first element.
    key, stream: (1,) or (rows,), uint64.
    low, high: integers are in [low, high). p: the probability of true.
    """
    rows, length = out.shape
    t, word = c_type(out), "unsigned"
    types: tuple[str, ...] = ()
    extra: dict[str, Any] = {}
    if kernel == "bits":
        types, word = (t,), t
    elif kernel in ("uniform", "normal", "truncated"):
        types, word = (t, *DRAWS[t]), DRAWS[t][0]
    elif kernel == "integers":
        word = "unsigned" if high - low <= SHORT_RANGE else "unsigned long long"
        types = (t, word)
        extra = {"low": np.uint64(low % 2**64), "count": np.uint64((high - low) % 2**64)}
    else:
        extra = {"threshold": p * 2.0**32}
    instance = Instance(FILE, f"random_{kernel}", types)
    if out.size == 0:
        return []
    threads = constants(FILE)["THREADS"]
    each = WORDS_OF_COUNTER if word == "unsigned" else WORDS_OF_COUNTER // 2
    return [
        named_call(
            instance,
            (ceil_div(length + each - 1, threads * each), rows),
            (threads,),
            out=out,
            start=start,
            key=key,
            key_step=int(key.size > 1),
            stream=stream,
            stream_step=int(stream.size > 1),
            length=length,
            **extra,
        )
    ]
