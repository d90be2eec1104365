"""The context in which one GPU is current, and in which errors of CUDA become errors of gdt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from gdt.errors import DeviceError, GdtError, OutOfMemoryError, error

CAPTURE = range(900, 910)  # cudaErrorStreamCaptureUnsupported and its neighbours
# Errors after which the process can do nothing more on the device (CUDA Runtime API, cudaError_t).
FATAL = frozenset({46, 214, 220, 700, 702, 710, 714, 715, 716, 717, 718, 719, 999})


class Scope:
    """A context in which one device is current and its failures become gdt's errors.

    was_entered: whether the context was ever entered. is_current: whether the device always is
    current, as it is the only one that the process sees.
    """

    def __init__(self, cupy: Any, index: int) -> None:
        self._cupy, self.name, self.device = cupy, f"cuda:{index}", cupy.cuda.Device(index)
        self.is_current = cupy.cuda.runtime.getDeviceCount() == 1
        self.was_entered = False
        self._errors = cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError

    def __enter__(self) -> Scope:
        self.device.__enter__()
        self.was_entered = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        cause: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if cause is not None:
                failure = self._translated(cause)
                if failure is not None:
                    raise failure from cause
        finally:
            self.device.__exit__(kind, cause, traceback)

    @property
    def stream(self) -> Any:
        """The stream on which the device computes: CuPy's current one."""
        return self._cupy.cuda.get_current_stream(self.device.id)

    @contextmanager
    def computing_on(self, stream: Any) -> Iterator[None]:
        """Let the device compute on `stream` in this context, in which it need not be current.

        CuPy's own context of a stream would not do: on leaving it, CuPy forgets a stream that
        `use` had made current, and gives the default stream to whatever device is current then.
        """
        with self:
            before = self.stream
            stream.use()
        try:
            yield
        finally:
            with self:
                before.use()

    def use(self, stream: Any) -> None:
        """Let the device, which is current, compute on `stream` from now on."""
        stream.use()

    def _translated(self, cause: BaseException) -> GdtError | None:
        """Return gdt's error for a failure of CUDA; None for any other exception."""
        if isinstance(cause, self._cupy.cuda.memory.OutOfMemoryError):
            return self._out_of_memory(cause)
        if not isinstance(cause, self._errors):
            return None
        status = getattr(cause, "status", 0)
        if status in CAPTURE:
            problem, remedy = (
                f"cannot be captured: {cause}",
                "Read values and wait outside the graph.",
            )
        elif status in FATAL:
            problem = f"the device has failed: {cause}"
            remedy = (
                "Its arrays are lost: start the process again, and restore the last checkpoint. "
                "CUDA_LAUNCH_BLOCKING=1 shows which operation fails."
            )
        else:
            problem, remedy = f"CUDA refuses: {cause}", "gdt.show_config() lists the GPUs."
        return error(DeviceError, self.name, problem, remedy=remedy)

    def _out_of_memory(self, cause: BaseException) -> GdtError:
        """Return an OutOfMemoryError that says how much memory is in use and how much is free."""
        pool = self._cupy.get_default_memory_pool()
        free, total = self._cupy.cuda.runtime.memGetInfo()
        return error(
            OutOfMemoryError,
            self.name,
            str(cause).rstrip("."),
            operands={
                "in use": f"{pool.used_bytes():,} bytes of this process's arrays",
                "would fit": f"{free + pool.free_bytes():,} bytes, if in one piece",
                "memory": f"{total:,} bytes, of which other processes may hold some",
            },
            remedy="Use smaller batches, split the arrays over more devices, or free what is not "
            "needed.",
        )
