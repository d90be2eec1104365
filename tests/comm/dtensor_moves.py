"""What TF DTensor sends for single ops, and the same ops in gdt.

Observed in TF 2.15.1 and 2.21.0 on the mesh x=4, y=2. A row is an op, its operands (shape, specs
with `-` for unsharded, dtype if not float32), and the collectives that TF ran, each with the shape
of what one device held before it, and its dtype if not float32. `REFUSED` rows are errors in TF.

Not here, as gdt has no such op yet: sort, top_k, unique, boolean masks, FFT, linear algebra beyond
products, convolution and pooling; nor control flow and printing, which are Python's in gdt.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

import gdt

AXES = {"x": 4, "y": 2}
DEVICES = 8
REFUSED = "refused"
ITEMSIZE = {"": 4, "xi64": 8, "xi1": 1}

COLLECTIVE = re.compile(r"(\w+)\((.+?)\) ((?:\d+x)*\d+|scalar)(xi64|xi1|)$")


class Row(NamedTuple):
    """One line of the table."""

    name: str
    program: Callable[..., Any]
    operands: tuple[str, ...]
    traffic: str

    @property
    def title(self) -> str:
        """The op and its operands' layouts, as the exceptions name it."""
        return f"{self.name} {' '.join(f'[{o.split()[1]}]' for o in self.operands)}"

    @property
    def bytes(self) -> int:
        """What TF's devices send together."""
        return sum(map(sent, self.traffic.split("; "))) if self.traffic else 0


def sent(collective: str) -> int:
    """Bytes that all devices send in one of TF's collectives; cutting a replica sends nothing."""
    found = COLLECTIVE.match(collective)
    if found is None:
        raise ValueError(f"not a collective: {collective!r}")
    kind, what, shape, dtype = found.groups()
    size = math.prod(int(n) for n in shape.split("x")) if shape != "scalar" else 1
    nbytes = size * ITEMSIZE[dtype]
    if kind == "AllScatter":
        return 0
    if kind == "AllReduce":
        p = math.prod(AXES[a] for a in what.split(" over ")[1].split("+"))
        return DEVICES // p * 2 * (p - 1) * nbytes
    out, given = (set(specs.split(",")) - {"-"} for specs in what.split(" <= "))
    if kind == "AllGather":
        return DEVICES * (math.prod(AXES[a] for a in given - out) - 1) * nbytes
    if kind == "AllToAll":
        p = math.prod(AXES[a] for a in given)
        return DEVICES * (p - 1) * nbytes // p
    raise ValueError(f"unknown collective {kind}")


def row(name: str, program: Callable[..., Any], *operands: str, tf: str = "") -> Row:
    return Row(name, program, operands, tf)


def gradients(f: Callable[..., Any]) -> Callable[..., Any]:
    """The value of sum(f(a, b)), and its gradients for both."""

    def run(a: gdt.DistributedArray, b: gdt.DistributedArray) -> Any:
        value, found = gdt.value_and_grad(lambda pair: gdt.sum(f(*pair)))((a, b))
        return value, *found

    return run


def relayout(*specs: str | None) -> Callable[..., Any]:
    return lambda x: gdt.relayout(x, gdt.Layout(specs, x.mesh))


def rows_at(table: gdt.DistributedArray, ids: gdt.DistributedArray) -> gdt.DistributedArray:
    return gdt.take(table, ids, axis=0)


def repeated(x: gdt.DistributedArray) -> gdt.DistributedArray:
    for _ in range(3):
        x = x + 1
    return x


def dropout(x: gdt.DistributedArray) -> gdt.DistributedArray:
    layer = gdt.nn.Dropout(0.5, key=1)  # the same mask in every run
    return layer(x)


def matmul(a: str, b: str, tf: str = "") -> Row:
    return row("matmul", gdt.matmul, f"16x32 {a}", f"32x8 {b}", tf=tf)


def add(a: str, b: str, tf: str = "") -> Row:
    return row("add", gdt.add, f"8x8 {a}", f"8x8 {b}", tf=tf)


def on_xy(name: str, program: Callable[..., Any], tf: str = "") -> Row:
    return row(name, program, "8x8 x,y", tf=tf)


def softmax_rows(logits: str, labels: str, maxima: str, sums: str) -> list[Row]:
    """Softmax, and both cross-entropies, of 8x8 logits."""
    whole = "; ".join(filter(None, (maxima, sums)))
    loss = "; ".join(filter(None, (maxima, sums, sums)))
    sparse = gdt.sparse_softmax_cross_entropy_with_logits
    given = f"8x8 {logits}"
    return [
        row("softmax", gdt.softmax, given, tf=whole),
        row("sparse softmax CE", sparse, f"8 {labels} int64", given, tf=loss),
        row("softmax CE", gdt.softmax_cross_entropy_with_logits, given, given, tf=loss),
    ]


GATHER_X = "AllGather(-,y <= x,y) 2x4"
GATHER_Y = "AllGather(x,- <= x,y) 2x4"
GATHER_XY = "AllGather(-,- <= x,y) 2x4"
TABLE = "AllGather(-,- <= x,-) 4x8"
SUM_XY = "AllReduce(Add over x+y) scalar"
MAX_Y, ADD_Y = "AllReduce(Max over y) 2x1", "AllReduce(Add over y) 2x1"
MAX_X, ADD_X = "AllReduce(Max over x) 8x1", "AllReduce(Add over x) 8x1"
MEAN_X = "AllReduce(Mean over x) 1x4"

PRODUCTS = [
    matmul("-,-", "-,-"),
    matmul("x,-", "-,-"),
    matmul("-,-", "-,x"),
    matmul("x,-", "-,y"),
    matmul("x,-", "-,x", "AllGather(-,- <= x,-) 4x32; AllGather(-,- <= -,x) 16x2"),
    matmul("-,x", "x,-", "AllReduce(Add over x) 16x8"),
    matmul("-,x", "-,-", "AllScatter(x,- <= -,-) 32x8; AllReduce(Add over x) 16x8"),
    matmul("-,-", "x,-", "AllScatter(-,x <= -,-) 16x32; AllReduce(Add over x) 16x8"),
    matmul("-,x", "y,-", REFUSED),
    matmul("x,-", "x,-", "AllGather(-,- <= x,-) 8x8"),
    matmul("x,y", "-,-", "AllScatter(y,- <= -,-) 32x8; AllReduce(Add over y) 4x8"),
    matmul("x,y", "y,-", "AllReduce(Add over y) 4x8"),
    matmul(
        "x,y",
        "y,x",
        "AllGather(-,y <= x,y) 4x16; AllReduce(Add over y) 16x2; AllGather(-,- <= -,x) 16x2",
    ),
    matmul("-,x", "-,x", "AllGather(-,- <= -,x) 16x8"),
    matmul("y,-", "-,x"),
    matmul("x,-", "y,-", "AllScatter(x,y <= x,-) 4x32; AllReduce(Add over y) 4x8"),
    matmul("-,y", "y,x", "AllReduce(Add over y) 16x2"),
    row(
        "matmul transpose_a",
        lambda a, b: a.mT @ b,
        "32x16 x,-",
        "32x8 x,-",
        tf="AllReduce(Add over x) 16x8",
    ),
    row("matmul transpose_b", lambda a, b: a @ b.mT, "16x32 x,-", "8x32 y,-"),
    row("batch matmul", gdt.matmul, "8x16x32 x,-,-", "8x32x8 x,-,-"),
    row("batch matmul bcast", gdt.matmul, "8x16x32 x,-,-", "32x8 -,y"),
    row(
        "einsum bij,bjk->bik",
        lambda a, b: gdt.einsum("bij,bjk->bik", a, b),
        "8x16x32 x,-,-",
        "8x32x8 x,-,y",
    ),
    row("einsum ij,kj->ik", lambda a, b: gdt.einsum("ij,kj->ik", a, b), "16x32 x,-", "8x32 y,-"),
]

ELEMENTWISE = [
    add("x,-", "x,-"),
    add("x,-", "-,-", "AllScatter(x,- <= -,-) 8x8"),
    add("x,-", "-,y", "AllScatter(x,y <= -,y) 8x4; AllScatter(x,y <= x,-) 2x8"),
    add("x,y", "y,-", f"AllGather(-,- <= y,-) 4x8; {GATHER_XY}"),
    add("x,-", "y,-", "AllGather(-,- <= y,-) 4x8; AllScatter(x,- <= -,-) 8x8"),
    add("x,-", "-,x", "AllGather(-,- <= -,x) 8x2; AllGather(-,- <= x,-) 2x8"),
    add("x,y", "x,y"),
    add("x,y", "-,-", "AllScatter(x,y <= -,-) 8x8"),
    add("x,y", "y,x", f"AllGather(-,- <= y,x) 4x2; {GATHER_XY}"),
    row("bias add", gdt.add, "8x8 x,-", "8 -"),
    row("bias add", gdt.add, "8x8 x,y", "8 y"),
    row("bias add", gdt.add, "8x8 x,-", "8 y", tf="AllScatter(x,y <= x,-) 2x8"),
    row(
        "bias add",
        gdt.add,
        "8x8 x,-",
        "8 x",
        tf="AllGather(- <= x) 2; AllGather(-,- <= x,-) 2x8",
    ),
    row("bcast [8,1]+[1,8]", gdt.add, "8x1 x,-", "1x8 -,y"),
    row("bcast [8,8]+[8,1]", gdt.add, "8x8 x,y", "8x1 x,-"),
    on_xy("scalar mul", lambda x: x * 2),
    on_xy("relu", gdt.relu),
    on_xy("exp", gdt.exp),
    on_xy("sqrt", gdt.sqrt),
    on_xy("cast i64", lambda x: x.astype("int64")),
    on_xy("where", lambda x: gdt.where(x > 0, x, -x)),
    on_xy("clip", lambda x: gdt.clip(x, 0.2, 0.8)),
    on_xy("erf", gdt.erf),
    on_xy("one_hot", lambda x: gdt.one_hot(x.astype("int64"), 8)),
    on_xy("dropout", dropout),
    on_xy("while_loop", repeated),
    on_xy("cond", lambda x: x if gdt.sum(x) > 0 else -x, SUM_XY),
]

REDUCTIONS = [
    on_xy("sum all", gdt.sum, SUM_XY),
    on_xy("sum 0", lambda x: gdt.sum(x, axis=0), "AllReduce(Add over x) 4"),
    on_xy("sum 1", lambda x: gdt.sum(x, axis=1), "AllReduce(Add over y) 2"),
    on_xy(
        "sum 0 keepdims",
        lambda x: gdt.sum(x, axis=0, keepdims=True),
        "AllReduce(Add over x) 1x4",
    ),
    on_xy("mean all", gdt.mean, "AllReduce(Mean over x+y) scalar"),
    on_xy("mean 0", lambda x: gdt.mean(x, axis=0), "AllReduce(Mean over x) 4"),
    on_xy("max 1", lambda x: gdt.max(x, axis=1), "AllReduce(Max over y) 2"),
    on_xy("prod", gdt.prod, "AllReduce(Mul over x+y) scalar"),
    on_xy("all", lambda x: gdt.all(x > 0), "AllReduce(All over x+y) scalarxi1"),
    on_xy("l2_loss", lambda x: gdt.sum(x * x) / 2, SUM_XY),
    on_xy("norm", lambda x: gdt.sqrt(gdt.sum(x * x)), "AllReduce(Add over x+y) 1x1"),
    on_xy("logsumexp 1", lambda x: gdt.logsumexp(x, axis=1), f"{MAX_Y}; AllReduce(Add over y) 2"),
    on_xy("variance", gdt.var, "AllReduce(Mean over x+y) 1x1; AllReduce(Mean over x+y) scalar"),
    on_xy("moments 0", lambda x: gdt.moments(x, 0), f"{MEAN_X}; {MEAN_X}"),
    row(
        "moments 0",
        lambda x: gdt.moments(x, 0),
        "8x8 x,-",
        tf="AllReduce(Mean over x) 1x8; AllReduce(Mean over x) 1x8",
    ),
    on_xy("batchnorm", lambda x: gdt.batch_norm(x)[0], f"{MEAN_X}; {MEAN_X}"),
    on_xy("argmax -1", lambda x: gdt.argmax(x, axis=-1), GATHER_Y),
    on_xy("argmax 0", lambda x: gdt.argmax(x, axis=0), GATHER_X),
    on_xy("cumsum 0", lambda x: gdt.cumsum(x, axis=0), GATHER_X),
    on_xy("cumsum 1", lambda x: gdt.cumsum(x, axis=1), GATHER_Y),
    on_xy("log_softmax", gdt.log_softmax, f"{MAX_Y}; {ADD_Y}"),
    *softmax_rows("x,-", "x", "", ""),
    *softmax_rows("-,x", "-", MAX_X, ADD_X),
    *softmax_rows("x,y", "x", MAX_Y, ADD_Y),
    *softmax_rows("-,-", "-", "", ""),
    row(
        "sparse softmax CE",
        gdt.sparse_softmax_cross_entropy_with_logits,
        "8 - int64",
        "8x8 x,-",
        tf="AllScatter(x <= -) 8xi64",
    ),
]

SHAPES = [
    on_xy("transpose", lambda x: x.T),
    on_xy("expand_dims 0", lambda x: gdt.expand_dims(x, 0)),
    on_xy("tile", lambda x: gdt.tile(x, (2, 1)), REFUSED),
    on_xy("split", lambda x: gdt.split(x, 2), REFUSED),
    on_xy("concat 0", lambda x: gdt.concat([x, x], 0), f"{GATHER_X}; {GATHER_X}"),
    on_xy("concat 1", lambda x: gdt.concat([x, x], 1), f"{GATHER_Y}; {GATHER_Y}"),
    on_xy("stack", lambda x: gdt.stack([x, x]), f"{GATHER_Y}; {GATHER_Y}"),
    on_xy("unstack", lambda x: [x[i] for i in range(8)], GATHER_X),
    on_xy("pad", lambda x: gdt.pad(x, 1), REFUSED),
    on_xy("slice [:, :4]", lambda x: x[:, :4], GATHER_Y),
    on_xy("slice [:4]", lambda x: x[:4], GATHER_X),
    on_xy("slice [0]", lambda x: x[0], f"{GATHER_XY}; AllScatter(-,x <= -,-) 8x8"),
    on_xy("reverse", lambda x: gdt.flip(x, 0), REFUSED),
    on_xy("roll", lambda x: gdt.roll(x, 1, 0), REFUSED),
    row(
        "gather rows",
        rows_at,
        "8x8 x,y",
        "4 - int64",
        tf=GATHER_X,
    ),
    on_xy("reshape [64]", lambda x: x.reshape(64), GATHER_Y),
    on_xy("reshape [4,2,8]", lambda x: x.reshape(4, 2, 8)),
    on_xy("reshape [8,2,4]", lambda x: x.reshape(8, 2, 4)),
    on_xy("reshape [2,4,8]", lambda x: x.reshape(2, 4, 8), GATHER_X),
    row(
        "embedding",
        rows_at,
        "16x8 -,y",
        "8 x int64",
    ),
    row(
        "embedding",
        rows_at,
        "16x8 x,-",
        "8 - int64",
        tf=TABLE,
    ),
    row(
        "embedding",
        rows_at,
        "16x8 x,-",
        "8 y int64",
        tf=TABLE,
    ),
]

RELAYOUTS = [
    row("relayout --", relayout(None, None), "8x8 x,-", tf="AllGather(-,- <= x,-) 2x8"),
    row("relayout x-", relayout("x", None), "8x8 -,-", tf="AllScatter(x,- <= -,-) 8x8"),
    row("relayout -x", relayout(None, "x"), "8x8 x,-", tf="AllToAll(-,x <= x,-) 2x8"),
    row("relayout y-", relayout("y", None), "8x8 x,-", tf="AllGather(-,- <= x,-) 2x8"),
    on_xy("relayout yx", relayout("y", "x"), GATHER_XY),
    on_xy("relayout --", relayout(None, None), GATHER_XY),
    on_xy("relayout x-", relayout("x", None), GATHER_Y),
    row("relayout xy", relayout("x", "y"), "8x8 x,-", tf="AllScatter(x,y <= x,-) 2x8"),
]


def gradient_row(name: str, f: Callable[..., Any], a: str, b: str, value: str, tf: str = "") -> Row:
    """value: what the sum costs TF, by the rows above. Its run asked for the gradients alone; in
    gdt the value travels with them."""
    return row(name, gradients(f), a, b, tf="; ".join(filter(None, (value, tf))))


def matmul_gradients(a: str, b: str, value: str, tf: str = "") -> Row:
    return gradient_row("grad of sum(a@b)", gdt.matmul, f"16x32 {a}", f"32x8 {b}", value, tf)


SUM_X = "AllReduce(Add over x) scalar"

GRADIENTS = [
    matmul_gradients("x,-", "-,-", SUM_X, "AllReduce(Add over x) 32x8"),
    matmul_gradients(
        "x,-", "-,y", SUM_XY, "AllReduce(Add over y) 16x32; AllReduce(Add over x) 32x8"
    ),
    matmul_gradients(
        "x,y", "y,-", f"AllReduce(Add over y) 4x8; {SUM_X}", "AllReduce(Add over x) 16x8"
    ),
    matmul_gradients("-,x", "x,-", "AllReduce(Add over x) 16x8"),
    matmul_gradients("-,-", "-,x", SUM_X, "AllReduce(Add over x) 16x32"),
    gradient_row("grad bias add", gdt.add, "8x8 x,-", "8 -", SUM_X),
    gradient_row("grad bias add", gdt.add, "8x8 x,y", "8 y", SUM_XY),
]

ROWS = [*PRODUCTS, *ELEMENTWISE, *REDUCTIONS, *SHAPES, *RELAYOUTS, *GRADIENTS]
