"""`fit` of Keras on gdt, beside Keras on JAX and the same networks in gdt.nn.

    python -m bench.keras [--jax PYTHON] [--torch PYTHON] [NETWORK ...]

An MLP for MNIST, a convolutional network and a small GPT; batches of synthetic rows, Adam, all
data parallel over 8 devices (JAX's are host devices), and on one. Each way to run has a process of
its own, and they take turns, an epoch each: a row shows the median milliseconds that a batch takes
by the clock, and of the processor. PYTHON is an interpreter with keras and jax, or torch; without
it those rows are left out.
"""

from __future__ import annotations

import os

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # before NumPy is loaded

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np

WARM, ROUNDS, BATCHES = 3, 5, 10
BATCH = {"mlp": 128, "cnn": 32, "gpt": 16}
VOCABULARY, POSITIONS, SIZE, HEADS, LAYERS = 64, 32, 64, 4, 2
Epoch = Callable[[], object]


def rows(network: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of an epoch, and their labels."""
    rng = np.random.default_rng(0)
    count = BATCH[network] * BATCHES
    if network == "gpt":
        ids = rng.integers(0, VOCABULARY, (count, POSITIONS + 1)).astype("int32")
        return ids[:, :-1], ids[:, 1:]
    shape = (784,) if network == "mlp" else (28, 28, 1)
    return rng.random((count, *shape), "float32"), rng.integers(0, 10, count).astype("int32")


# ---------------------------------------------------------------- Keras


def keras_model(network: str) -> Any:
    """Return a network of Keras' layers."""
    import keras  # noqa: PLC0415  # the backend is chosen before
    from keras import layers  # noqa: PLC0415

    if network == "mlp":
        return keras.Sequential([keras.Input((784,)), layers.Dense(128, "relu"), layers.Dense(10)])
    if network == "cnn":
        return keras.Sequential(
            [
                keras.Input((28, 28, 1)),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(64, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(10),
            ]
        )

    class Positions(layers.Layer):  # type: ignore[misc]
        def build(self, shape: tuple[int, ...]) -> None:
            self.table = self.add_weight(shape=shape[1:], name="table")

        def call(self, x: Any) -> Any:
            return x + self.table

    inputs = keras.Input((POSITIONS,), dtype="int32")
    x = Positions()(layers.Embedding(VOCABULARY, SIZE)(inputs))
    for _ in range(LAYERS):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(HEADS, SIZE // HEADS)(y, y, use_causal_mask=True)
        y = layers.Dense(4 * SIZE, "gelu")(layers.LayerNormalization()(x))
        x = x + layers.Dense(SIZE)(y)
    return keras.Model(inputs, layers.Dense(VOCABULARY)(layers.LayerNormalization()(x)))


def keras_epoch(backend: str, network: str, devices: int) -> Epoch:
    """Return a function that runs an epoch of `fit`."""
    os.environ["KERAS_BACKEND"] = "numpy" if backend == "gdt" else backend
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={devices}"
    if backend == "gdt":
        import gdt.interop.keras  # noqa: F401, PLC0415
    import keras  # noqa: PLC0415

    if devices > 1:
        mesh = keras.distribution.DeviceMesh(
            (devices,), ["batch"], [f"cpu:{i}" for i in range(devices)]
        )
        keras.distribution.set_distribution(keras.distribution.DataParallel(mesh))
    model = keras_model(network)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    x, y = rows(network)
    return lambda: model.fit(x, y, BATCH[network], verbose=0)


# ---------------------------------------------------------------- gdt.nn


def gdt_epoch(network: str, devices: int) -> Epoch:
    """Return a function that runs an epoch of gdt's own `fit`."""
    import gdt  # noqa: PLC0415
    from gdt import nn  # noqa: PLC0415

    with gdt.MirroredStrategy(devices).scope():
        if network == "mlp":
            model: Any = nn.Sequential(nn.Dense(784, 128, activation="relu"), nn.Dense(128, 10))
        elif network == "cnn":
            model = nn.Sequential(
                nn.Conv2D(32, 3, activation="relu"),
                nn.MaxPool(2),
                nn.Conv2D(64, 3, activation="relu"),
                nn.MaxPool(2),
                nn.Flatten(),
                nn.Dense(10),
            )
        else:
            model = _gpt(nn)
        model.compile("adam", "sparse_softmax_cross_entropy")
    x, y = rows(network)
    return lambda: model.fit(x, y, BATCH[network], verbose=0)


def _gpt(nn: Any) -> Any:
    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.norm1, self.norm2 = nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)
            self.attention = nn.MultiHeadAttention(HEADS, SIZE, causal=True)
            self.up = nn.Dense(SIZE, 4 * SIZE, activation="gelu")
            self.down = nn.Dense(4 * SIZE, SIZE)

        def __call__(self, x: Any) -> Any:
            x = x + self.attention(self.norm1(x))
            return x + self.down(self.up(self.norm2(x)))

    class Network(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            self.table, self.positions = (
                nn.Embedding(VOCABULARY, SIZE),
                nn.Embedding(POSITIONS, SIZE),
            )
            self.blocks = [Block() for _ in range(LAYERS)]
            self.norm, self.head = nn.LayerNorm(SIZE), nn.Dense(SIZE, VOCABULARY)

        def __call__(self, ids: Any) -> Any:
            x = self.table(ids) + self.positions.weight
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Network()


# ---------------------------------------------------------------- turns


def work(backend: str, network: str, devices: int) -> None:
    """Run an epoch for every line of the input, and print what a batch took, in milliseconds."""
    if backend == "gdt.nn":
        epoch = gdt_epoch(network, devices)
    else:
        epoch = keras_epoch(backend, network, devices)
    for _ in range(WARM):
        epoch()
    print("ready", flush=True)
    for _ in sys.stdin:
        wall, cpu = time.perf_counter(), time.process_time()
        epoch()
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
        print(wall / BATCHES * 1e3, cpu / BATCHES * 1e3, flush=True)


class Worker:
    """A process that runs epochs."""

    def __init__(self, python: str, backend: str, network: str, devices: int) -> None:
        self.name, self.times = f"{backend}, {devices}", list[tuple[float, float]]()
        command = [python, "-m", "bench.keras", "--work", backend, network, str(devices)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None and self._process.stdin is not None
        self._out, self._in = self._process.stdout, self._process.stdin
        self._next()

    def _next(self) -> str:
        line = self._out.readline()
        if not line:
            raise SystemExit(f"{self.name} has ended with status {self._process.wait()}")
        return line

    def epoch(self) -> None:
        """Run an epoch, and note its times."""
        self._in.write("\n")
        self._in.flush()
        wall, cpu = self._next().split()
        self.times.append((float(wall), float(cpu)))

    def close(self) -> None:
        """End the process."""
        self._in.close()
        self._process.wait()


def main() -> None:
    """Print a table of each network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("networks", nargs="*", default=[*BATCH])
    parser.add_argument("--jax")
    parser.add_argument("--torch")
    parser.add_argument("--work", action="store_true")
    options = parser.parse_args()
    if options.work:
        backend, network, devices = options.networks
        work(backend, network, int(devices))
        return
    ways = [(sys.executable, "gdt", 8), (sys.executable, "gdt.nn", 8)]
    ways += [(sys.executable, "gdt", 1), (sys.executable, "gdt.nn", 1)]
    if options.jax:
        ways += [(options.jax, "jax", 8), (options.jax, "jax", 1)]
    if options.torch:
        ways += [(options.torch, "torch", 1)]
    for network in options.networks:
        workers = [Worker(python, name, network, count) for python, name, count in ways]
        for _ in range(ROUNDS):
            for worker in workers:
                worker.epoch()
        for worker in workers:
            wall, cpu = (median(times) for times in zip(*worker.times, strict=True))
            print(f"{network:4} {worker.name:12} {wall:8.2f} ms  {cpu:8.2f} ms of the processor")
            worker.close()


if __name__ == "__main__":
    main()
