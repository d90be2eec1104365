"""Random numbers that depend on the seed alone: not on mesh, layout, storage or number of devices.

Every element is a function of a key, the number of the draw, and its own global index
(`gdt.random.bits` says which), so each device makes its own shard and nothing is sent. On the CPU
the numbers are bitwise the same everywhere.

A draw takes its key from `key=`, and then gives the same numbers every time; or else from the
default generator, `gdt.random.generator`, which counts its draws and starts anew with
`gdt.random.seed`. Keys and counts are arrays when a draw runs: a plan never holds them.
"""

from gdt.random.draws import (
    Generator,
    bernoulli,
    fold_in,
    generator,
    integers,
    key,
    normal,
    permutation,
    seed,
    split,
    truncated_normal,
    uniform,
)

__all__ = [
    "Generator",
    "bernoulli",
    "fold_in",
    "generator",
    "integers",
    "key",
    "normal",
    "permutation",
    "seed",
    "split",
    "truncated_normal",
    "uniform",
]
