"""The two trainings that every contender runs: sizes, initial weights and batches."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Float = NDArray[np.float32]
Batch = tuple[Float, NDArray[np.int64]]

EPSILON = 1e-5  # of batch normalisation
BETA1, BETA2, ADAM_EPSILON = 0.9, 0.999, 1e-7
BATCHES = 16


@dataclass(frozen=True)
class Workload:
    """A multilayer perceptron and its training; inputs are synthetic, labels those of a teacher."""

    name: str
    sizes: tuple[int, ...]
    batch: int
    learning_rate: float

    def weights(self) -> list[Float]:
        """Return Glorot-uniform matrices and zero biases, in the order w0, b0, w1, b1, ..."""
        rng = np.random.default_rng(0)
        parameters = []
        for fan_in, fan_out in pairwise(self.sizes):
            limit = np.sqrt(6 / (fan_in + fan_out))
            parameters.append(rng.uniform(-limit, limit, (fan_in, fan_out)).astype(np.float32))
            parameters.append(np.zeros(fan_out, np.float32))
        return parameters

    def batches(self) -> list[Batch]:
        """Return pairs of inputs (batch, features), a fifth non-zero, and labels (batch,)."""
        rng = np.random.default_rng(1)
        features, classes = self.sizes[0], self.sizes[-1]
        teacher = rng.standard_normal((features, classes))
        batches = []
        for _ in range(BATCHES):
            x = rng.random((self.batch, features)) * (rng.random((self.batch, features)) < 0.2)
            labels = ((x - x.mean()) @ teacher).argmax(axis=1)
            batches.append((x.astype(np.float32), labels))
        return batches


MNIST = Workload("mnist", (784, 700, 500, 10), batch=128, learning_rate=1e-3)
IMDB = Workload("imdb", (1200, 48, 2), batch=64, learning_rate=1e-2)
WORKLOADS = {w.name: w for w in (MNIST, IMDB)}
