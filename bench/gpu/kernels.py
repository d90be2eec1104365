"""gdt's kernels at the sizes of the benchmark, and their references.

The rates of products and of attention count floating-point operations, and a product is compared
with cuBLAS. Every other kernel is bound by memory: its rate counts the bytes that it must read and
write, and is compared with a large copy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from gdt.backend import Backend, backend_of
from gdt.cuda import launches
from gdt.cuda.runner import KernelCall
from gdt.cuda.sources import C_TYPES
from gdt.errors import KernelError, error
from gdt.sharding.mesh import Mesh

Run = Callable[[], Any]
Timer = Callable[[Run], float]
"""A function that returns the seconds that a device takes for the launches of a run."""

ITEM_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "tf32": 4, "float64": 8}
COPIED = 1 << 30  # bytes
DRAWN = 1 << 20  # normal numbers, which larger arrays repeat
PRODUCTS = {  # the matrix products in a kernel bound by arithmetic; a gradient needs five
    "matmul": 1,
    "attention": 2,
    "attention and gradient": 7,
}
PASSES = {  # the number of times that a kernel reads or writes an array of its shape
    "batch norm: moments": 1,
    "batch norm: apply": 2,
    "batch norm: gradient": 5,  # its sums read x and dy, and its result needs both again
    "cross-entropy and gradient": 2,
    "sgd": 3,
    "momentum": 5,
    "adam": 7,
    "sum of rows": 1,
    "uniform": 1,
    "normal": 1,
}


@dataclass(frozen=True)
class Case:
    """A kernel at one size. shape: (m, n, k) of a product, (heads, positions, features) of
    attention, else the shape of its largest array."""

    kernel: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def name(self) -> str:
        """The kernel, dtype and shape as text."""
        return f"{self.kernel}, {self.dtype}, {' x '.join(map(str, self.shape))}"

    @property
    def is_product(self) -> bool:
        """Whether the kernel is a matrix product."""
        return self.kernel == "matmul"

    @property
    def is_arithmetic(self) -> bool:
        """Whether the kernel is bound by arithmetic, not by memory."""
        return self.kernel in PRODUCTS

    @property
    def work(self) -> float:
        """The floating-point operations of products; the bytes that any other kernel must move."""
        size = math.prod(self.shape)
        if not self.is_arithmetic:
            return PASSES[self.kernel] * size * ITEM_BYTES[self.dtype]
        terms = size if self.is_product else size * self.shape[1]
        return 2 * PRODUCTS[self.kernel] * terms

    def as_json(self) -> dict[str, Any]:
        """Return the case as JSON, for another library's process."""
        return asdict(self) | {"name": self.name, "shape": list(self.shape)}


CASES = (
    *[
        Case("matmul", d, (n,) * 3)
        for d in ("bfloat16", "float16", "float32")
        for n in (4096, 8192)
    ],
    Case("matmul", "tf32", (8192,) * 3),
    Case("matmul", "float64", (4096,) * 3),
    *[
        Case(kernel, d, (64, 4096, 64))
        for d in ("float16", "float32")
        for kernel in PRODUCTS
        if kernel.startswith("attention")
    ],
    *[Case(kernel, "float32", (65536, 1024)) for kernel in PASSES if kernel.startswith("batch")],
    Case("cross-entropy and gradient", "float32", (8192, 32768)),
    Case("cross-entropy and gradient", "bfloat16", (8192, 131072)),
    *[Case(kernel, "float32", (1 << 27,)) for kernel in ("sgd", "momentum", "adam")],
    Case("sum of rows", "float32", (65536, 4096)),
    *[Case(kernel, "float32", (1 << 28,)) for kernel in ("uniform", "normal")],
)


class Bench:
    """The preparation of cases on the first device of a mesh, which must be the current device."""

    def __init__(self, mesh: Mesh) -> None:
        self.backend: Backend = backend_of(mesh)
        self.xp: Any = self.backend.xp
        self.runner: Any = self.backend.runner

    def prepare(self, case: Case) -> Run:
        """Create the case's operands; return a function that launches its kernels.

        Raises KernelError if this GPU has no kernel for the case."""
        prepare = {
            "matmul": self._matmul,
            "attention": self._attention,
            "attention and gradient": self._attention,
            "batch norm: moments": self._batch_norm,
            "batch norm: apply": self._batch_norm,
            "batch norm: gradient": self._batch_norm,
            "cross-entropy and gradient": self._cross_entropy,
            "sgd": self._update,
            "momentum": self._update,
            "adam": self._update,
            "sum of rows": self._sum,
            "uniform": self._random,
            "normal": self._random,
        }[case.kernel]
        calls = prepare(case)
        for call in calls:
            if call.instance not in launches.instances(call.instance.file, self.runner.arch):
                raise error(KernelError, case.name, f"no kernel for {self.runner.arch}")
        return self._launching(calls)

    def free(self) -> None:
        """Give back the memory of operands that nobody refers to."""
        self.xp.get_default_memory_pool().free_all_blocks()

    def reference(self, case: Case) -> Run | None:
        """Return a run of cuBLAS's product; None for tf32, and for a case that is no product."""
        if not case.is_product or case.dtype == "tf32":
            return None
        x, w, out = self._factors(case)

        def run() -> None:
            self.xp.matmul(x, w, out=out)

        try:
            run()
        except (TypeError, ValueError):  # CuPy 13 has no bfloat16
            return None
        return run

    def copy(self, nbytes: int = COPIED) -> Run:
        """Return a run of a large copy, which reads and writes `nbytes` each."""
        source, target = self.xp.ones(nbytes, np.uint8), self.xp.ones(nbytes, np.uint8)
        return lambda: self.xp.copyto(target, source)

    def _launching(self, calls: Sequence[KernelCall]) -> Run:
        runner = self.runner

        def run() -> None:
            for call in calls:
                runner.run(call)

        return run

    # ---- operands

    def _empty(self, shape: tuple[int, ...], dtype: str) -> Any:
        return self.backend.empty(shape, np.dtype(dtype))

    def _full(self, value: float, *shape: int, dtype: Any = np.float32) -> Any:
        return self.xp.full(shape, value, dtype)

    def _normal(self, *shape: int, dtype: Any = np.float32) -> Any:
        """Normal numbers: how fast a GPU is depends on the bits that it moves, by its power, and on
        the branches that values take. A large array repeats some of them."""
        size, dtype = math.prod(shape), np.dtype(dtype)
        drawn = np.random.default_rng(0).standard_normal(min(size, DRAWN), np.float32).astype(dtype)
        bits = self.xp.asarray(drawn.view(f"u{dtype.itemsize}"))
        repeated = self.xp.tile(bits, -(-size // len(drawn)))[:size]
        return repeated.view(dtype).reshape(shape)

    def _factors(self, case: Case) -> tuple[Any, Any, Any]:
        m, n, k = case.shape
        dtype = {"tf32": "float32"}.get(case.dtype, case.dtype)
        if dtype == "bfloat16":
            import ml_dtypes  # noqa: PLC0415

            dtype = ml_dtypes.bfloat16
        draw = partial(self._normal, dtype=dtype)
        # The second factor is stored by columns, the only order in which wgmma takes tf32.
        w = draw(n, k).T if case.dtype == "tf32" else draw(k, n)
        return draw(m, k), w, self.xp.empty((m, n), dtype)

    def _matmul(self, case: Case) -> list[KernelCall]:
        x, w, out = self._factors(case)
        runner, of_float64 = self.runner, self.runner.arch in launches.FLOAT64_ON_TENSOR_CORES
        return launches.matmul(
            x,
            w,
            out,
            self._empty,
            tensor_cores=of_float64 if case.dtype == "float64" else case.dtype != "float32",
            arch=runner.arch,
            multiprocessors=runner.multiprocessors,
        )

    def _attention(self, case: Case) -> list[KernelCall]:
        heads, positions, features = case.shape
        q, k, v, g = (self._normal(*case.shape, dtype=case.dtype) for _ in range(4))
        lse, products = (self._full(0, heads, positions) for _ in range(2))
        sight = launches.Sight(positions, positions, 1 / math.sqrt(features))
        how: Any = {"mesh_ndim": 1, "arch": self.runner.arch}
        calls = launches.attention(q, k, v, self.xp.empty_like(q), lse, sight, **how)
        if case.kernel == "attention":
            return calls
        gradients = self._full(0, *q.shape), self._full(0, *q.shape), self._full(0, *q.shape)
        return calls + launches.attention_gradients(
            q, k, v, g, lse, products, gradients, sight, **how
        )

    def _batch_norm(self, case: Case) -> list[KernelCall]:
        rows, channels = case.shape
        x = self._normal(rows, channels, 1)
        merged = self._full(1, 1, 3, channels)
        if case.kernel.endswith("moments"):
            return launches.bn_moments(x, merged, self._full(1, 1, channels), self._empty)
        mean, variance = self._full(0, channels), self._full(1, channels)
        y = self.xp.empty_like(x)
        if case.kernel.endswith("apply"):
            return launches.bn_apply(x, mean, variance, None, None, y, eps=1e-5)
        sums, count = self._full(0, 1, 2, channels), self._full(rows, channels)
        dy = self._normal(rows, channels, 1)
        return [
            *launches.bn_sums(x, dy, sums, self._empty),
            *launches.bn_backward(x, dy, variance, None, *sums[0], count, y, eps=1e-5),
        ]

    def _cross_entropy(self, case: Case) -> list[KernelCall]:
        rows, classes = case.shape
        dtype: Any = np.float32
        if case.dtype == "bfloat16":
            import ml_dtypes  # noqa: PLC0415

            dtype = ml_dtypes.bfloat16
        logits = self._normal(rows, classes, dtype=dtype)
        labels = self.xp.arange(rows, dtype=np.int64) % classes
        loss, lse = self._full(0, rows), self._full(0, rows)
        flag = self.xp.full(1, np.uint64(2**64 - 1), np.uint64)
        gradient = self.xp.empty_like(logits)
        return launches.softmax_ce(logits, labels, loss, lse, gradient, flag)

    def _update(self, case: Case) -> list[KernelCall]:
        operands, numbers = {
            "sgd": (2, (0.1,)),
            "momentum": (3, (0.1, 0.9)),
            "adam": (4, (0.9, 0.999, 1.0, 1e-3, 1e-7)),
        }[case.kernel]
        arrays = [self._normal(*case.shape) for _ in range(operands)]
        if case.kernel == "adam":
            arrays[2] = abs(arrays[2])  # the mean of squares
        tensors = [(*arrays, *arrays[:-1])]
        scalars = {C_TYPES[case.dtype]: self.xp.asarray(np.array(numbers, case.dtype))}
        launch = {"sgd": launches.sgd, "momentum": launches.momentum, "adam": launches.adam}
        return launch[case.kernel](tensors, scalars, to_device=self.backend.upload)

    def _sum(self, case: Case) -> list[KernelCall]:
        rows, columns = case.shape
        x, out = self._normal(rows, columns, 1), self._full(0, rows, 1)
        return launches.reduce("Sum", x, out, self._empty)

    def _random(self, case: Case) -> list[KernelCall]:
        out = self._full(0, 1, *case.shape)
        start = self.xp.zeros(1, np.int64)
        number = self.xp.zeros(1, np.uint64)
        return launches.random(case.kernel, out, start, number, number)
