"""What programs on gdt and on JAX share: weights, what records a step, and layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np


def redraw(model: Any, seed: int = 0) -> None:
    """Give a model weights that NumPy draws, in the order of `model.weights`."""
    rng = np.random.default_rng(seed)
    values = []
    for weight in model.weights:
        scale = (1 / max(1, np.prod(weight.shape[:-1]))) ** 0.5 if len(weight.shape) > 1 else 0.0
        drawn = rng.normal(0, 1, weight.shape).astype("float32") * np.float32(scale)
        is_drawn = len(weight.shape) > 1
        values.append(drawn if is_drawn else np.asarray(keras.ops.convert_to_numpy(weight)))
    model.set_weights(values)


def transformations() -> tuple[Any, Any]:
    """Return what gives gradients, and what records or compiles a step."""
    if keras.backend.backend() == "jax":
        import jax  # noqa: PLC0415

        return jax.value_and_grad, jax.jit
    import gdt  # noqa: PLC0415

    return gdt.value_and_grad, gdt.function


def device_mesh(*sizes: int) -> Any:
    names = [f"cpu:{i}" for i in range(np.prod(sizes))]
    return keras.distribution.DeviceMesh(sizes, ["batch", "model"][: len(sizes)], names)


def parallel(rows: int, columns: int, layouts: dict[str, tuple[str | None, ...]]) -> Any:
    """Return ModelParallel over a mesh of `rows` devices for batches and `columns` for models."""
    layout_map = keras.distribution.LayoutMap(device_mesh(rows, columns))
    for path, axes in layouts.items():
        layout_map[path] = axes
    return keras.distribution.ModelParallel(
        layout_map=layout_map, batch_dim_name="batch", auto_shard_dataset=False
    )


def data_parallel(count: int) -> Any:
    return keras.distribution.DataParallel(device_mesh=device_mesh(count), auto_shard_dataset=False)


COLUMNS = {
    ".*(dense|wide).*/kernel": (None, "model"),
    ".*(dense|wide).*/bias": ("model",),
    ".*(query|key|value)/kernel": (None, "model", None),
    ".*(query|key|value)/bias": ("model", None),
    ".*attention_output/kernel": ("model", None, None),
    ".*narrow/kernel": ("model", None),
    ".*lstm.*/kernel": (None, "model"),
}
ROWS = {
    ".*(dense|wide|narrow).*/kernel": ("model", None),
    ".*embedding.*/embeddings": (None, "model"),
}
LAYOUTS: dict[str, Callable[[], Any]] = {
    "one": lambda: None,
    "data 8": lambda: data_parallel(8),
    "data 3": lambda: data_parallel(3),
    "data 2, model 4": lambda: parallel(2, 4, COLUMNS),
    "data 4, model 2, rows": lambda: parallel(4, 2, ROWS),
}
