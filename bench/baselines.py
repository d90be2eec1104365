"""The training steps written by hand in NumPy on one array: the baseline of all contenders.

No array is allocated after the first step: every result goes into a buffer that `__init__` creates.
Parameters lie in one flat array, gradients in another, so an optimizer is a loop over blocks.
"""

import numpy as np
from numpy.typing import NDArray

from bench import worker
from bench.workloads import ADAM_EPSILON, BETA1, BETA2, EPSILON, IMDB, MNIST, Float

ADAM_BLOCK = 64 * 1024  # elements: smaller blocks lose more to calls than they gain in cache
SCALAR = np.float32


class Flat:
    """Arrays of several shapes as `views` of one array `flat`."""

    def __init__(self, shapes: list[tuple[int, ...]]) -> None:
        sizes = [int(np.prod(shape)) for shape in shapes]
        self.flat = np.zeros(sum(sizes), np.float32)
        parts = np.split(self.flat, np.cumsum(sizes)[:-1])
        self.views = [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


class SoftmaxCrossEntropy:
    """The summed loss of a batch of logits; the call overwrites them with their gradient."""

    def __init__(self, batch: int, classes: int) -> None:
        self.largest = np.empty((batch, 1), np.float32)
        self.total = np.empty(batch, np.float32)
        self.ones = np.ones(classes, np.float32)
        self.row_starts = np.arange(batch) * classes

    def __call__(self, logits: Float, labels: NDArray[np.int64]) -> float:
        """Return the loss. logits: (batch, classes), contiguous; labels: (batch,)."""
        at_label = self.row_starts + labels
        flat = logits.reshape(-1)
        np.maximum.reduce(logits, axis=1, keepdims=True, out=self.largest)
        np.subtract(logits, self.largest, out=logits)
        correct = flat[at_label].sum()
        np.exp(logits, out=logits)
        np.matmul(logits, self.ones, out=self.total)
        np.divide(logits, self.total[:, None], out=logits)
        flat[at_label] -= 1
        return float(np.log(self.total).sum() - correct)


class Adam:
    """Adam on flat arrays, in place, one block at a time.

    `m` and `v` hold Adam's moments divided by 1 - beta1 and 1 - beta2, which saves three passes.
    """

    def __init__(self, size: int, learning_rate: float) -> None:
        self.learning_rate = learning_rate
        self.m = np.zeros(size, np.float32)
        self.v = np.zeros(size, np.float32)
        self.scratch = np.empty(ADAM_BLOCK, np.float32)
        self.steps = 0

    def __call__(self, parameters: Float, gradients: Float) -> None:
        self.steps += 1
        unbiased1 = (1 - BETA1) / (1 - BETA1**self.steps)
        root2 = ((1 - BETA2**self.steps) / (1 - BETA2)) ** 0.5
        rate = SCALAR(self.learning_rate * unbiased1 * root2)
        epsilon = SCALAR(ADAM_EPSILON * root2)
        for start in range(0, parameters.size, ADAM_BLOCK):
            block = slice(start, start + ADAM_BLOCK)
            g, m, v = gradients[block], self.m[block], self.v[block]
            scratch = self.scratch[: g.size]
            np.multiply(m, SCALAR(BETA1), out=m)
            np.add(m, g, out=m)
            np.multiply(g, g, out=scratch)
            np.multiply(v, SCALAR(BETA2), out=v)
            np.add(v, scratch, out=v)
            np.sqrt(v, out=scratch)
            np.add(scratch, epsilon, out=scratch)
            np.divide(m, scratch, out=scratch)
            np.multiply(scratch, rate, out=scratch)
            np.subtract(parameters[block], scratch, out=parameters[block])


class MnistStep:
    """The MNIST step: dense layers with ReLU, mean softmax cross-entropy, Adam."""

    def __init__(self, weights: list[Float], batch: int, learning_rate: float) -> None:
        shapes = [w.shape for w in weights]
        self.parameters, self.gradients = Flat(shapes), Flat(shapes)
        for view, w in zip(self.parameters.views, weights, strict=True):
            view[...] = w
        widths = [b.size for b in weights[1::2]]
        self.outputs = [np.empty((batch, width), np.float32) for width in widths]
        self.cotangents = [np.empty((batch, width), np.float32) for width in widths[:-1]]
        self.masks = [np.empty((batch, width), np.bool_) for width in widths[:-1]]
        self.zeros = [np.zeros(width, np.float32) for width in widths]  # faster than the scalar 0
        self.ones = np.ones(batch, np.float32)
        self.loss = SoftmaxCrossEntropy(batch, widths[-1])
        self.adam = Adam(self.parameters.flat.size, learning_rate)

    def __call__(self, x: Float, labels: NDArray[np.int64]) -> float:
        """Train on one batch and return its loss."""
        loss = self.backward(x, labels)
        self.adam(self.parameters.flat, self.gradients.flat)
        return loss

    def backward(self, x: Float, labels: NDArray[np.int64]) -> float:
        """Fill `gradients` and return the loss."""
        batch = len(labels)
        inputs = [x, *self.outputs[:-1]]
        w, dw = self.parameters.views[::2], self.gradients.views[::2]
        b, db = self.parameters.views[1::2], self.gradients.views[1::2]
        last = len(w) - 1
        for k, h in enumerate(self.outputs):
            np.matmul(inputs[k], w[k], out=h)
            np.add(h, b[k], out=h)
            if k < last:
                np.maximum(h, self.zeros[k], out=h)
        logits = self.outputs[-1]
        loss = self.loss(logits, labels) / batch
        np.multiply(logits, SCALAR(1 / batch), out=logits)
        g = logits
        for k in range(last, -1, -1):
            np.matmul(inputs[k].T, g, out=dw[k])
            np.matmul(self.ones, g, out=db[k])
            if k > 0:
                np.matmul(g, w[k].T, out=self.cotangents[k - 1])
                g = self.cotangents[k - 1]
                np.greater(inputs[k], 0, out=self.masks[k - 1])
                np.multiply(g, self.masks[k - 1], out=g)
        return loss


class ImdbStep:
    """The IMDB step: dense, ReLU, parameter-free batch norm, dense; summed cross-entropy, SGD."""

    def __init__(self, weights: list[Float], batch: int, learning_rate: float) -> None:
        shapes = [w.shape for w in weights]
        self.parameters, self.gradients = Flat(shapes), Flat(shapes)
        for view, w in zip(self.parameters.views, weights, strict=True):
            view[...] = w
        hidden, classes = shapes[2]
        self.hidden, self.normal, self.g, self.scratch = np.empty((4, batch, hidden), np.float32)
        self.mask = np.empty((batch, hidden), np.bool_)
        self.logits = np.empty((batch, classes), np.float32)
        self.mean, self.deviation, self.g_mean, self.slope = np.empty((4, hidden), np.float32)
        self.average = np.full(batch, 1 / batch, np.float32)
        self.ones = np.ones(batch, np.float32)
        self.zeros = np.zeros(hidden, np.float32)  # faster than the scalar 0
        self.loss = SoftmaxCrossEntropy(batch, classes)
        self.learning_rate = SCALAR(learning_rate)

    def __call__(self, x: Float, labels: NDArray[np.int64]) -> float:
        """Train on one batch and return its loss."""
        loss = self.backward(x, labels)
        np.multiply(self.gradients.flat, self.learning_rate, out=self.gradients.flat)
        np.subtract(self.parameters.flat, self.gradients.flat, out=self.parameters.flat)
        return loss

    def backward(self, x: Float, labels: NDArray[np.int64]) -> float:
        """Fill `gradients` and return the loss."""
        w0, b0, w1, b1 = self.parameters.views
        dw0, db0, dw1, db1 = self.gradients.views
        h, normal, g = self.hidden, self.normal, self.g
        np.matmul(x, w0, out=h)
        np.add(h, b0, out=h)
        np.maximum(h, self.zeros, out=h)
        np.greater(h, 0, out=self.mask)
        self.normalise(h, out=normal)
        np.matmul(normal, w1, out=self.logits)
        np.add(self.logits, b1, out=self.logits)
        loss = self.loss(self.logits, labels)
        np.matmul(normal.T, self.logits, out=dw1)
        np.matmul(self.ones, self.logits, out=db1)
        np.matmul(self.logits, w1.T, out=g)
        self.normalise_backward(g, normal)
        np.multiply(g, self.mask, out=g)
        np.matmul(x.T, g, out=dw0)
        np.matmul(self.ones, g, out=db0)
        return loss

    def normalise(self, h: Float, out: Float) -> None:
        """Compute out = (h - mean) / deviation over the batch."""
        np.matmul(self.average, h, out=self.mean)
        np.subtract(h, self.mean, out=out)
        np.multiply(out, out, out=self.scratch)
        np.matmul(self.average, self.scratch, out=self.deviation)
        np.add(self.deviation, SCALAR(EPSILON), out=self.deviation)
        np.sqrt(self.deviation, out=self.deviation)
        np.divide(out, self.deviation, out=out)

    def normalise_backward(self, g: Float, normal: Float) -> None:
        """Compute g = (g - mean(g) - normal * mean(g * normal)) / deviation."""
        np.multiply(g, normal, out=self.scratch)
        np.matmul(self.average, self.scratch, out=self.slope)
        np.matmul(self.average, g, out=self.g_mean)
        np.multiply(normal, self.slope, out=self.scratch)
        np.subtract(g, self.scratch, out=g)
        np.subtract(g, self.g_mean, out=g)
        np.divide(g, self.deviation, out=g)


STEPS = {MNIST: MnistStep, IMDB: ImdbStep}


def numpy_step(workload: worker.Workload) -> worker.Start:
    """Return the contender of the NumPy step."""
    weights, batches = workload.weights(), workload.batches()

    def start() -> worker.Step:
        step = STEPS[workload](weights, workload.batch, workload.learning_rate)
        return lambda index: step(*batches[index % len(batches)])

    return start


if __name__ == "__main__":
    worker.serve({"numpy": numpy_step}, {"numpy": np.__version__})
