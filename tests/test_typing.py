"""gdt's types, as type checkers see them: right calls pass, and every wrong one is found."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

api = pytest.importorskip("mypy.api")

ROOT = Path(__file__).parent.parent

# `# error: CODE` stands on every line that a type checker must refuse.
CALLS = """
from typing import Any, assert_type

import numpy as np

import gdt
from gdt import DistributedArray
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.op import op
from gdt.engine.plan import Memory, Shards
from gdt.random import fold_in, key

x = gdt.ones((2, 3))

assert_type(x, DistributedArray)
assert_type(gdt.sum(x), DistributedArray)
assert_type(gdt.sum(x, 0, None, x, True), DistributedArray)
assert_type(gdt.exp(x, out=x, where=x > 0), DistributedArray)
assert_type(gdt.power(x, 2, x), DistributedArray)
assert_type(gdt.add(x, 1.5), DistributedArray)
assert_type(gdt.exp(x), DistributedArray)
assert_type(gdt.std(x, 0, None, x, 1), DistributedArray)
assert_type(gdt.tril(x, k=1), DistributedArray)
assert_type(gdt.argmax(x, axis=-1), DistributedArray)
assert_type(gdt.reshape(x, (3, 2)), DistributedArray)
assert_type(gdt.astype(x, "float32"), DistributedArray)
assert_type(gdt.moments(x, axes=0), tuple[DistributedArray, ...])
assert_type(fold_in(key(0), 1), DistributedArray)
assert_type(x + 1, DistributedArray)
assert_type(1 - x, DistributedArray)
assert_type(-x @ x, DistributedArray)
assert_type(x == 0, DistributedArray)
assert_type(x.sum(axis=0), DistributedArray)
assert_type(x[0], DistributedArray)
assert_type(x.astype("float64").reshape(3, 2), DistributedArray)



def loss(w: DistributedArray, scale: float) -> DistributedArray:
    return gdt.sum(w * scale)


def loss_and_count(w: DistributedArray) -> tuple[DistributedArray, int]:
    return gdt.sum(w), 1


@gdt.function
def step(w: DistributedArray, scale: float = 1.0) -> DistributedArray:
    return loss(w, scale)


@gdt.function(verify=0)
def pair(w: DistributedArray) -> tuple[DistributedArray, int]:
    return w, 1


assert_type(gdt.value_and_grad(loss)(x, 2.0)[0], DistributedArray)
assert_type(gdt.value_and_grad(loss_and_count, has_aux=True)(x)[0], tuple[DistributedArray, int])
assert_type(step(x), DistributedArray)
assert_type(pair(x), tuple[DistributedArray, int])
assert_type(gdt.nn.Dense(3, 1)(x), DistributedArray)
assert_type(gdt.nn.Sequential(gdt.nn.Dense(3, 1))(x), DistributedArray)
gdt.value_and_grad(loss)(x)  # error: call-arg
gdt.value_and_grad(loss)(x, "two")  # error: arg-type
gdt.grad(loss)(x)  # error: call-arg
step(x, "two")  # error: arg-type
step(x, rate=2)  # error: call-arg

gdt.sum(x, axsi=0)  # error: call-arg
gdt.sum()  # error: call-arg
gdt.sum(x, axis="rows")  # error: arg-type
gdt.sum(x, keepdims=None)  # error: arg-type
gdt.add(x)  # error: call-arg
gdt.add(x, x, x, x)  # error: call-arg
gdt.exp(x, base=2)  # error: call-arg
gdt.tril(x, out=x)  # error: call-arg
gdt.power(x, 2, out=np.ones(3))  # error: arg-type
gdt.tril(x, k=1.5)  # error: arg-type
gdt.tril(x, shards=x)  # error: arg-type
gdt.reshape(x)  # error: call-arg
gdt.argmax(x, axis=(0, 1))  # error: arg-type
gdt.astype(x)  # error: call-arg
gdt.random.normal((2,), std_dev=2.0)  # error: call-arg
gdt.min(x, 0, axsi=0)  # error: call-arg
gdt.nansum(x, axis="rows")  # error: arg-type
gdt.std(x, ddof="one")  # error: arg-type
gdt.nanpercentile(x)  # error: call-arg


@op("... d -> ... d", whole="d")
def flipped(
    xp: Any, x: Any, /, axis: int = -1, *, shards: Shards = FROM_ENGINE, out: Memory | None = None
) -> Any:
    return xp.flip(x, axis=axis)


assert_type(flipped(x), DistributedArray)
flipped(x, axes=1)  # error: call-arg
flipped(x, out=x)  # error: arg-type
"""


@pytest.mark.slow
def test_wrong_calls_are_found_and_right_ones_are_typed(tmp_path: Path) -> None:
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    settings = {"config-file": ROOT / "pyproject.toml", "cache-dir": ROOT / ".mypy_cache"}
    options = [f"--{name}={value}" for name, value in settings.items()]
    limit = sys.getrecursionlimit()
    try:
        said, problems, _ = api.run([*options, "--no-error-summary", str(file)])
    finally:  # mypy's own would let later tests recurse 16 times as deep
        sys.setrecursionlimit(limit)
    assert not problems
    found = set(re.findall(r"calls\.py:(\d+): error: .*\[([\w-]+)\]", said))
    marked = {
        (str(number), code)
        for number, line in enumerate(CALLS.splitlines(), 1)
        for code in re.findall(r"# error: ([\w-]+)", line)
    }
    assert found == marked, said
