"""Random numbers that depend on the seed alone, not on mesh, layout, storage or number of devices.

Every element is a function of a key, the number of the draw, and the element's global index
(`gdt.random.bits` defines it), so each device draws its own shard and nothing is sent. On the CPU
the numbers are bitwise the same everywhere.

A draw with `key=` gives the same numbers every time. Without it, the default generator
`gdt.random.generator` gives a key and counts its draws; `gdt.random.seed` resets it. Keys and
counts are arrays when a draw runs, so no plan contains them.
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
