"""BatchNorm: the normalisation of each feature over the global batch."""

from __future__ import annotations

from typing import Any

import numpy as np

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.engine.updates import update_op
from gdt.errors import DtypeError, error
from gdt.nn import initializers
from gdt.nn.module import Module
from gdt.ops.movement import relayout
from gdt.ops.nn.batch_norm.op import batch_norm, batch_normalization
from gdt.sharding.layout import Layout

Block = Any


@update_op("..., ..., ... -> ...", linear="average + value", donate="average")
def moving_average(xp: Any, average: Block, value: Block, momentum: Any, /, *, out: Any) -> Block:
    """Return momentum * average + (1 - momentum) * value, in the memory of `average`."""
    (new,) = out
    change = (1 - momentum) * value
    xp.multiply(average, momentum, out=new)
    return xp.add(new, change, out=new)


@checked_class(eager=True)
class BatchNorm(Module):
    """Batch normalisation over all axes of x but the last, then scale and offset.

    x, result: (..., size).
    size: the number of features. None gives the layer of the DTensor tutorial, which has no
        arrays, and cannot be evaluated, because it has no running moments.
    layout: that of vectors of features, such as `weight_layout.delete([0])` of the layer before.
    affine: whether there are a scale and an offset to train.
    momentum: the weight of the old running moments in each update. Training updates the running
        moments, and evaluation uses them.
    epsilon: added to the variance. The default is that of the DTensor tutorial; Keras has 1e-3.
    dtype: the dtype of the layer's arrays.

    Moments are those of the global batch, however it is split; the running variance is the biased
    one, as in Keras. Source: Ioffe and Szegedy 2015.

    Raises DtypeError for evaluation without a size.

    >>> layer = gdt.nn.BatchNorm(2)
    >>> layer(gdt.asarray([[1.0, 5.0], [3.0, 9.0]], "float32")).numpy().round(3).tolist()
    [[-1.0, -1.0], [1.0, 1.0]]
    >>> layer.moving_mean.numpy().round(3)
    array([0.02, 0.07], dtype=float32)
    """

    untrained = ("moving_mean", "moving_variance")

    def __init__(
        self,
        size: int | None = None,
        layout: Layout | None = None,
        *,
        affine: bool = True,
        momentum: float = 0.99,
        epsilon: float = 1e-5,
        dtype: Any = np.float32,
    ) -> None:
        self.size, self.momentum, self.epsilon = size, momentum, epsilon
        self.scale: DistributedArray | None = None
        self.offset: DistributedArray | None = None
        if size is None:
            return
        if affine:
            self.scale = initializers.ones((size,), dtype, layout)
            self.offset = initializers.zeros((size,), dtype, layout)
        self.moving_mean = initializers.zeros((size,), dtype, layout)
        self.moving_variance = initializers.ones((size,), dtype, layout)

    def __call__(self, x: Any, training: bool | None = None) -> Any:
        """Return x normalised with the batch's moments if `training`, else with running moments.

        training: None takes the module's mode."""
        if not (self.training if training is None else training):
            return self._evaluate(x)
        y, mean, variance = batch_norm(x, self.scale, self.offset, self.epsilon)
        if self.size is not None and y.size:  # no rows have no moments
            self._track("moving_mean", mean)
            self._track("moving_variance", variance)
        return y

    def _track(self, name: str, value: DistributedArray) -> None:
        """Update the running moment called `name` with the batch's."""
        attributes = vars(self)
        value = relayout(value, attributes[name].layout)
        moving_average.update([(attributes, name)], value, float(self.momentum))

    def _evaluate(self, x: Any) -> Any:
        """Return x normalised with the running moments; raise DtypeError if there are none."""
        if self.size is None:
            raise error(
                DtypeError,
                "BatchNorm",
                "a layer without a size has no running moments to evaluate with",
                remedy="Use gdt.nn.BatchNorm(size, layout, affine=False).",
            )
        mean, variance = self.moving_mean, self.moving_variance
        return batch_normalization(x, mean, variance, self.offset, self.scale, self.epsilon)

    def describe(self) -> str:
        """Return the number of features as text."""
        return "no running moments" if self.size is None else f"{self.size}"
