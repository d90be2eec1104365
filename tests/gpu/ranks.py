"""Several ranks of NCCL in one process and on one GPU, with nothing of gdt between.

    python3 -m tests.gpu.ranks

The environment is `tests.gpu.stages.SHARED_GPU`. Where this hangs, or is refused, no mesh of
`tests.twin` works.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

COUNTS = (2, 4)
SIZE = 1 << 20  # elements
ROUNDS = 100


def all_reduce(cupy: Any, nccl: Any, count: int, size: int = SIZE) -> bool:
    """Whether the sum of ranks' arrays is right in each of them."""
    with cupy.cuda.Device(0):
        streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(count)]
        sent = [cupy.full(size, rank + 1, np.float32) for rank in range(count)]
        received = [cupy.zeros(size, np.float32) for _ in range(count)]
        cupy.cuda.Device(0).synchronize()
        identifier = nccl.get_unique_id()
        nccl.groupStart()
        ranks = [nccl.NcclCommunicator(count, identifier, rank) for rank in range(count)]
        nccl.groupEnd()
        for _ in range(ROUNDS):
            nccl.groupStart()
            for rank, x, y, stream in zip(ranks, sent, received, streams, strict=True):
                rank.allReduce(
                    x.data.ptr, y.data.ptr, size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream.ptr
                )
            nccl.groupEnd()
        cupy.cuda.Device(0).synchronize()
        return all(bool((y == count * (count + 1) // 2).all()) for y in received)


def main() -> None:
    import cupy  # noqa: PLC0415
    from cupy.cuda import nccl  # noqa: PLC0415

    print("NCCL", nccl.get_version(), flush=True)
    right = True
    for count in COUNTS:
        right &= (is_right := all_reduce(cupy, nccl, count))
        print(f"{count} ranks: {'right' if is_right else 'WRONG'}", flush=True)
    sys.exit(not right)


if __name__ == "__main__":
    main()
