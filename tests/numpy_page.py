"""`python -m tests.numpy_page` writes docs/numpy.md: what gdt has of NumPy's namespace."""

from __future__ import annotations

import gc
import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import gdt
from gdt.array.registry import ALIASES, FUNCTIONS
from gdt.engine.custom_vjp import custom_vjp
from gdt.engine.op import Op
from gdt.engine.planned import PlannedOp
from gdt.state.trees import leaves

PAGE = Path(__file__).parent.parent / "docs/numpy.md"
DATES = "gdt has no dates"
OBJECTS = "gdt's arrays have no strides or order of memory that a program can ask for"
ABSENT = {
    **dict.fromkeys(("busday_count", "busday_offset", "is_busday", "isnat"), DATES),
    **dict.fromkeys(("datetime_as_string", "datetime_data"), DATES),
    **dict.fromkeys(("asmatrix", "bmat"), "matrices are arrays of rank 2"),
    **dict.fromkeys(("isfortran", "nested_iters"), OBJECTS),
    **dict.fromkeys(("get_include", "info", "show_runtime", "test"), "about NumPy itself"),
    **dict.fromkeys(("fromregex", "frompyfunc"), "Python objects and text, one at a time"),
}  # fmt: skip
NOT_YET = "not yet"


def names_of_numpy() -> list[str]:
    """The functions of NumPy's main namespace."""
    found = [n for n in np.__all__ if callable(getattr(np, n))]
    return sorted(n for n in found if not inspect.isclass(getattr(np, n)))


def how(name: str) -> str:
    """How a function runs: by which rule, as a function of ops, or on the host."""
    function = FUNCTIONS.get(ALIASES.get(name, name.rstrip("_")))
    if function is None:
        return "NumPy's own"
    if isinstance(function, PlannedOp):
        return "an op that moves blocks"
    if isinstance(function, Op):
        rule = function.declaration.rule
        whole = " ".join(sorted(function.declaration.whole))
        text = f"op `{rule}`" if isinstance(rule, str) else "op, its rule by axes"
        return f"{text}, whole `{whole}`" if whole else text
    chapter = function.__module__.removeprefix("gdt.ops.").removeprefix("gdt.functions.")
    return f"function of ops, `{chapter}`"


def gradient(name: str) -> str:
    """Whether there is a gradient."""
    function: Any = FUNCTIONS.get(ALIASES.get(name, name.rstrip("_")))
    if isinstance(function, Op | custom_vjp):
        return "yes" if any(function.vjps) or function.joint_vjp else "no"
    return "by its ops" if function is not None else "no"


# ---------------------------------------------------------------- bytes and memory

SIDE, DEVICES = 64, 8
LARGE = 192  # the side of a matrix that decompositions do not gather for its size
LAYOUTS: list[tuple[dict[str, int], list[Any], Any]] = [
    ({"x": 8}, ["x", None], "x"),
    ({"x": 8}, [None, "x"], "x"),
    ({"a": 2, "b": 4}, ["a", "b"], ("a", "b")),
]  # meshes, and how they split matrices and vectors: by rows, by columns, by both


class Operands:
    """Split operands of equal size, by name: matrices of floats (x, w), of integers (i) and of
    bools (t); vectors of floats (v, u), of integers (n) and a permutation (order); a matrix that is
    positive definite, and a tall one."""

    def __init__(self, mesh: gdt.Mesh, matrix: list[Any], vector: Any) -> None:
        random, size = np.random.default_rng(0), SIDE * SIDE
        x, w = random.standard_normal((2, SIDE, SIDE))
        definite = random.standard_normal((LARGE, LARGE))
        values = {
            "x": x, "w": w, "i": random.integers(1, 9, (SIDE, SIDE)), "t": x > 0,
            "definite": definite @ definite.T + LARGE * np.eye(LARGE),
            "tall": random.standard_normal((size // 4, 4)),
            "v": random.standard_normal(size), "u": random.standard_normal(size),
            "n": random.integers(0, 9, size), "order": random.permutation(size),
        }  # fmt: skip
        layouts = {2: gdt.Layout(matrix, mesh), 1: gdt.Layout([vector], mesh)}
        self.arrays = {n: gdt.asarray(a, layout=layouts[a.ndim]) for n, a in values.items()}
        self.used: set[str] = set()

    def __getattr__(self, name: str) -> Any:
        self.used.add(name)
        return self.arrays[name]

    def nbytes(self) -> int:
        """The bytes of the largest operand that was used."""
        return max((self.arrays[name].nbytes for name in self.used), default=8 * SIDE * SIDE)

    def unused(self) -> int:
        """The bytes of blocks that a device holds of operands that were not used."""
        return sum(x.blocks[0].nbytes for n, x in self.arrays.items() if n not in self.used)


def _calls(names: str, call: Callable[..., Any]) -> dict[str, Callable[..., Any]]:
    return dict.fromkeys(names.split(), call)


def of_x(function: Callable[..., Any], o: Operands) -> Any:
    """Call a function that takes one matrix."""
    return function(o.x)


CALLS: dict[str, Callable[..., Any]] = {
    **_calls(
        "add allclose append array_equal array_equiv atan2 copysign copyto divide divmod dot "
        "equal float_power floor_divide fmax fmin fmod greater greater_equal heaviside hypot inner "
        "isclose isin less less_equal logaddexp logaddexp2 logical_and logical_or logical_xor "
        "matmul maximum minimum multiply nextafter not_equal power remainder subtract vdot vecdot",
        lambda f, o: f(o.x, o.w),
    ),
    **_calls("intersect1d setdiff1d setxor1d union1d", lambda f, o: f(o.n, o.order)),
    **_calls("tensordot", lambda f, o: f(o.x, o.w, 1)),
    **_calls("matvec", lambda f, o: f(o.x, o.w[0])),
    **_calls("vecmat", lambda f, o: f(o.w[0], o.x)),
    **_calls("bitwise_and bitwise_or bitwise_xor gcd lcm left_shift right_shift",
             lambda f, o: f(o.i, o.i)),
    **_calls("bitwise_count invert", lambda f, o: f(o.i)),
    **_calls("packbits", lambda f, o: f(o.t)),
    **_calls("unpackbits", lambda f, o: f(o.i.astype("uint8"))),
    **_calls("bincount", lambda f, o: f(o.n)),
    **_calls("take delete", lambda f, o: f(o.v, o.order)),
    **_calls("take_along_axis", lambda f, o: f(o.v, o.order, 0)),
    **_calls("put_along_axis", lambda f, o: f(o.v, o.order, o.u, 0)),
    **_calls("put", lambda f, o: f(o.v, o.order, o.u)),
    **_calls("place putmask", lambda f, o: f(o.x, o.t, o.w)),
    **_calls("where", lambda f, o: f(o.t, o.x, o.w)),
    **_calls("compress extract", lambda f, o: f(o.v > 0, o.v)),
    **_calls("select", lambda f, o: f([o.t], [o.x])),
    **_calls("choose", lambda f, o: f(o.i % 2, [o.x, o.w])),
    **_calls("piecewise", lambda f, o: f(o.x, [o.t], [1.0, 2.0])),
    **_calls("searchsorted", lambda f, o: f(gdt.sort(o.u), o.v)),
    **_calls("digitize", lambda f, o: f(o.v, np.arange(-2.0, 3.0))),
    **_calls("interp", lambda f, o: f(o.v, gdt.arange(9.0), gdt.arange(9.0))),
    **_calls("convolve correlate", lambda f, o: f(o.v, np.ones(9))),
    **_calls("polyadd polysub", lambda f, o: f(o.v, o.u)),
    **_calls("polymul", lambda f, o: f(o.v, np.ones(9))),
    **_calls("polyval", lambda f, o: f(np.ones(3), o.v)),
    **_calls("poly", lambda f, o: f(o.v[:9])),
    **_calls("polyder polyint cumulative_prod cumulative_sum sort argsort unique unique_all "
             "unique_counts unique_inverse unique_values median nanmedian trim_zeros sort_complex",
             lambda f, o: f(o.v)),
    **_calls("histogram2d", lambda f, o: f(o.v, o.u)),
    **_calls("histogramdd", lambda f, o: f(o.tall[:, :2])),
    **_calls("concat block column_stack dstack hstack stack vstack", lambda f, o: f([o.x, o.w])),
    **_calls("lexsort", lambda f, o: f([o.v, o.u])),
    **_calls("cross", lambda f, o: f(o.tall[:, :3], o.tall[:, :3])),
    **_calls("outer", lambda f, o: f(o.v[:SIDE], o.u[:SIDE])),
    **_calls("kron", lambda f, o: f(o.x, np.ones((2, 2)))),
    **_calls("vander", lambda f, o: f(o.v, 4)),
    **_calls("einsum", lambda f, o: f("ij,kj->ik", o.x, o.w)),
    **_calls("quantile nanquantile", lambda f, o: f(o.v, 0.3)),
    **_calls("percentile nanpercentile", lambda f, o: f(o.v, 30)),
    **_calls("partition argpartition", lambda f, o: f(o.v, 9)),
    **_calls("array_split split hsplit vsplit", lambda f, o: f(o.x, 2)),
    **_calls("dsplit", lambda f, o: f(o.x.reshape(SIDE, SIDE // 2, 2), 2)),
    **_calls("expand_dims unstack", lambda f, o: f(o.x, axis=0)),
    **_calls("repeat tile", lambda f, o: f(o.x, 2)),
    **_calls("pad", lambda f, o: f(o.x, 1)),
    **_calls("roll", lambda f, o: f(o.v, SIDE * SIDE // 3)),
    **_calls("reshape resize", lambda f, o: f(o.x, (SIDE // 2, SIDE * 2))),
    **_calls("broadcast_to", lambda f, o: f(o.x, (2, SIDE, SIDE))),
    **_calls("moveaxis swapaxes", lambda f, o: f(o.x, 0, 1)),
    **_calls("rollaxis", lambda f, o: f(o.x, 1)),
    **_calls("insert", lambda f, o: f(o.v, 5, 1.0)),
    **_calls("diag diagflat", lambda f, o: f(o.v[:SIDE])),
    **_calls("full_like", lambda f, o: f(o.x, 2.0)),
    **_calls("fill_diagonal", lambda f, o: f(o.x, 2.0)),
    **_calls("ldexp", lambda f, o: f(o.x, o.i)),
    **_calls("ix_ meshgrid", lambda f, o: f(o.v[:SIDE], o.u[:SIDE])),
    **_calls("apply_along_axis", lambda f, o: f(gdt.sum, 0, o.x)),
    **_calls("apply_over_axes", lambda f, o: f(gdt.sum, o.x, [0])),
    **_calls("ravel_multi_index", lambda f, o: f((o.n, o.n), (SIDE, SIDE))),
    **_calls("unravel_index", lambda f, o: f(o.n, (SIDE, SIDE))),
    **_calls("astype", lambda f, o: f(o.x, "float32")),
    **_calls("linalg.cholesky linalg.eigh linalg.eigvalsh linalg.inv linalg.det linalg.slogdet "
             "linalg.eig linalg.eigvals linalg.cond linalg.matrix_rank linalg.pinv linalg.svd "
             "linalg.svdvals linalg.qr", lambda f, o: f(o.definite)),
    **_calls("linalg.solve linalg.lstsq", lambda f, o: f(o.definite, o.definite)),
    **_calls("linalg.matrix_power", lambda f, o: f(o.x, 3)),
    **_calls("linalg.matmul linalg.tensordot linalg.vecdot", lambda f, o: f(o.x, o.w)),
    **_calls("linalg.outer", lambda f, o: f(o.v[:SIDE], o.u[:SIDE])),
    **_calls("linalg.cross", lambda f, o: f(o.tall[:, :3], o.tall[:, :3])),
    **_calls("linalg.multi_dot", lambda f, o: f([o.x, o.w, o.x])),
    **_calls("linalg.tensorsolve", lambda f, o: f(o.definite, o.definite[0])),
    **_calls("linalg.tensorinv", lambda f, o: f(o.definite, ind=1)),
    **_calls("fft.fft fft.ifft fft.rfft fft.ihfft", lambda f, o: f(o.v)),
    **_calls("fft.irfft fft.hfft", lambda f, o: f(o.v, SIDE * SIDE)),
}  # fmt: skip
WITHOUT_MOVES = {
    *(
        "array_repr",
        "array_str",
        "common_type",
        "iscomplexobj",
        "isrealobj",
        "isscalar",
        "iterable",
        "ndim",
    ),
    *("min_scalar_type", "mintypecode", "printoptions", "result_type", "shape", "size"),
    *("show_config", "can_cast", "isdtype", "issubdtype", "promote_types"),
}


class Cost(NamedTuple):
    """The costs of a call: bytes that a device sends until nothing of the result is partial, and
    bytes of blocks that it holds at most, both in shares: 1 / 8 of the largest operand."""

    sent: float
    held: float


def cost(name: str, layout: tuple[dict[str, int], list[Any], Any]) -> Cost | None:
    """The costs of a function of operands in a layout; None of those that make arrays of nothing
    or have none."""
    if name in WITHOUT_MOVES:
        return None
    sizes, matrix, vector = layout
    mesh = gdt.create_mesh(sizes, blocks=DEVICES)
    function: Any = gdt
    for part in name.split("."):
        function = getattr(function, part)
    given = Operands(mesh, matrix, vector)
    gc.disable()  # what is garbage by now stays until all is counted
    try:
        with gdt.default_mesh(mesh), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            every = [*given.arrays.values()]
            with gdt.testing.peak_memory(every) as memory, gdt.count_collectives() as counter:
                for array in leaves(CALLS.get(name, of_x)(function, given)):
                    if isinstance(array, gdt.DistributedArray):
                        array.resolve()
    except (TypeError, ValueError, AttributeError):
        if name in CALLS:
            raise
        return None  # a function that takes no array
    finally:
        gc.enable()
    share = given.nbytes() / DEVICES
    return Cost(counter.bytes / DEVICES / share, (memory.peak - given.unused()) / share)


def costs(name: str) -> str:
    """The columns of bytes and memory."""
    every = [cost(name, layout) for layout in LAYOUTS]
    known = [c for c in every if c is not None]
    if len(known) < len(every):
        return "| | | |"
    figures = [*[c.sent for c in known], max(c.held for c in known)]
    return f"{' | '.join(map(_figure, figures))} |"


def _figure(x: float) -> str:
    if x >= 10:
        return f"{x:.0f}"
    return "~0" if 0 < x < 0.005 else f"{x:.2g}"


def row(name: str, *, is_measured: bool = True) -> str:
    """The row of a function; without its costs if they are not to be measured."""
    alias = f" (`{ALIASES[name]}`)" if name in ALIASES else ""
    text = f"| `{name}`{alias} | {how(name)} | {gradient(name)} |"
    return f"{text} {costs(ALIASES.get(name, name))}" if is_measured else text


def functions() -> tuple[list[str], list[str]]:
    """The functions of NumPy that gdt has, and those that it has not."""
    names = names_of_numpy()
    present = [n for n in names if hasattr(gdt, n) and not inspect.ismodule(getattr(gdt, n))]
    return present, [n for n in names if n not in present]


def of_packages() -> list[str]:
    """The functions of gdt.linalg and gdt.fft, by their dotted names."""
    return [
        f"{package.__name__.removeprefix('gdt.')}.{name}"
        for package in (gdt.linalg, gdt.fft)
        for name in sorted(package.__all__)
        if inspect.isroutine(getattr(package, name)) or isinstance(getattr(package, name), Op)
    ]


HEADER = [
    "| function | runs as | gradient | rows | columns | both | memory |",
    "|---|---|---|---|---|---|---|",
]


def text() -> str:
    """The page."""
    present, absent = functions()
    lines = [
        "# NumPy's functions",
        "",
        f"gdt has {len(present)} of the {len(present) + len(absent)} functions of NumPy's main "
        "namespace. This page is written by",
        "`python -m tests.numpy_page`, and a test keeps it current.",
        "",
        "An *op* runs by its rule: factors that are not whole may be split, and nothing moves; the",
        "factors that are *whole* are gathered first. A *function of ops* moves what its ops move;",
        "`gdt.explain(lambda: gdt.name(x))` prints the bytes for any layout.",
        "",
        "*Rows*, *columns* and *both* say what each of 8 devices sends where operands are split "
        "along",
        "their first axis, their last, or both (over 2 x 4 devices), until nothing is partial in "
        "the",
        "result; *memory* says what a device holds at most, operands and results included. All are "
        "in",
        f"shares: 1/8 of the largest operand, float64 of {SIDE} x {SIDE} or {SIDE * SIDE}, of "
        f"{LARGE} x {LARGE} for",
        "decompositions. So 0.88 is an all-to-all, 7 an all-gather, 14 an all-reduce of all. "
        "Products gather",
        "operands as small as these at once, large ones in panels. What an op takes while it runs "
        "is not",
        "counted: for `solve`, `inv`, `det`, `slogdet` and `cholesky` a copy of the operands and "
        "about one share.",
        "`eig`, `eigh`, `eigvals`, `eigvalsh`, and `qr` and `svd` of what is not tall gather split "
        "matrices: every",
        "device holds them whole, and `explain` shows the all-gather.",
        "A transform of a split axis alone holds three shares beside its operand, if its length has"
        " two factors",
        "of at least the number of shards; any other length, such as a prime, is gathered.",
        "Functions without figures make arrays, or take none.",
        "",
        *HEADER,
        *map(row, present),
        "",
        "## Matrices and transforms",
        "",
        *HEADER,
        *map(row, of_packages()),
        "",
        "## What is missing",
        "",
        "| function | why |",
        "|---|---|",
        *[f"| `{name}` | {ABSENT.get(name, NOT_YET)} |" for name in absent],
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(text())
