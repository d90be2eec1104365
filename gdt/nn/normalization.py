"""Normalisation of features over the global batch, of tokens over features, and of groups."""

from __future__ import annotations

import zlib
from functools import partial
from typing import Any

import numpy as np

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.comm.agreement import Action, compared_origin
from gdt.comm.notes import note
from gdt.errors import ArgumentError, error
from gdt.nn import initializers
from gdt.nn.functions.batch_norm import batch_norm, batch_normalization, moving_average
from gdt.nn.functions.layer_norm import group_norm, layer_norm, rms_norm
from gdt.nn.module import Module
from gdt.nn.parameters import ParameterSpec, check_features, check_sizes, features_of, mesh_of
from gdt.observe import noted
from gdt.ops.movement import relayout
from gdt.sharding.dtypes import is_half
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh


class _FeatureNorm(Module):
    """The base of normalisations with a scale, and perhaps an offset, for each feature.

    specs: those of `scale` and `offset`, of which a layer may lack any.
    """

    def __init__(self, size: int | None, epsilon: float, specs: dict[str, ParameterSpec]) -> None:
        check_sizes(size=size)
        if not epsilon >= 0:
            problem = f"epsilon is {epsilon!r}"
            raise error(ArgumentError, problem, remedy="It is at least 0.")
        self.epsilon, self._parameter_specs = epsilon, specs
        self.scale: DistributedArray | None = None
        self.offset: DistributedArray | None = None
        self.size: int | None = None
        if size is not None:
            self._build(size)

    def _build(self, size: int, mesh: Mesh | None = None) -> None:
        """Create the arrays for x of `size` features."""
        self.size = size
        for name, spec in self._parameter_specs.items():
            setattr(self, name, spec.create((size,), mesh))
        del self._parameter_specs

    def _fit(self, x: Any) -> None:
        """Create the arrays if there are none, or raise ShapeError unless x fits them."""
        if self.size is None:
            self._build(features_of(type(self).__name__, x), mesh_of(self, x))
        else:
            check_features(type(self).__name__, x, self.size)

    def describe(self) -> str:
        """Return the number of features as text."""
        return "?" if self.size is None else f"{self.size}"


def _parameter_specs(
    layer: str,
    scale_layout: Layout | None,
    offset_layout: Layout | None,
    affine: bool,
    dtype: Any,
) -> dict[str, ParameterSpec]:
    """Return the specs of a scale of ones and an offset of zeros; none unless `affine`."""
    if not affine:
        return {}
    scale = ParameterSpec(layer, initializers.ones, dtype, scale_layout)
    return {
        "scale": scale,
        "offset": ParameterSpec(layer, initializers.zeros, dtype, offset_layout or scale_layout),
    }


@checked_class(eager=True)
class BatchNorm(_FeatureNorm):
    """Batch normalisation over all axes of x but the last, then scale and offset.

    x, result: (..., size).
    size: the number of features; found at the first call if not given.
    layout: that of vectors of features, such as `weight_layout.delete([0])` of the layer before.
    affine: whether there are a scale and an offset to train.
    momentum: the weight of the old running moments in each update, in [0, 1]. Training updates the
        running moments, and evaluation uses them, as does a layer that is frozen, in either mode.
    epsilon: added to the variance. The default is that of the DTensor tutorial; Keras has 1e-3.
    dtype: the dtype of the layer's arrays.

    Moments are those of the global batch, however it is split; the running variance is the biased
    one, as in Keras. Source: Ioffe and Szegedy 2015.

    Raises ArgumentError for sizes and numbers out of range, ShapeError for an x of another number
    of features.

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
        if not 0 <= momentum <= 1:
            problem = f"momentum is {momentum!r}"
            raise error(ArgumentError, problem, remedy="It is in [0, 1].")
        self.momentum = momentum
        specs = _parameter_specs("BatchNorm", layout, None, affine, dtype)
        specs["moving_mean"] = ParameterSpec("BatchNorm", initializers.zeros, dtype, layout)
        specs["moving_variance"] = ParameterSpec("BatchNorm", initializers.ones, dtype, layout)
        self.moving_mean: DistributedArray
        self.moving_variance: DistributedArray
        super().__init__(size, epsilon, specs)

    def __call__(self, x: Any, training: bool | None = None) -> DistributedArray:
        """Return x normalised with the batch's moments if `training`, else with running moments.

        training: None takes the module's mode. A frozen layer uses running moments, as in Keras."""
        if isinstance(x, DistributedArray) and is_half(x.dtype):  # statistics are not rounded
            return self(x.astype(np.float32), training).astype(x.dtype)
        self._fit(x)
        if not (self.trainable and (self.training if training is None else training)):
            mean, variance = self.moving_mean, self.moving_variance
            return batch_normalization(x, mean, variance, self.offset, self.scale, self.epsilon)
        y, mean, variance = batch_norm(x, self.scale, self.offset, self.epsilon)
        if y.size:  # no rows have no moments
            self._track("moving_mean", mean)
            self._track("moving_variance", variance)
        return y

    def _track(self, name: str, value: DistributedArray) -> None:
        """Update the running moment called `name` with the batch's."""
        attributes = vars(self)
        value = relayout(value, attributes[name].layout)
        if value.mesh.num_processes > 1:
            origins = " ".join([f"{compared_origin(x):x}" for x in (attributes[name], value)])
            text = f"{name} of BatchNorm, {value.type} ({zlib.crc32(origins.encode()):08x})"
            noted(partial(note, value.mesh, Action("op", text), (self.momentum,)))
        moving_average.update([(attributes, name)], value, float(self.momentum))


@checked_class(eager=True)
class LayerNorm(_FeatureNorm):
    """Normalisation of x over its last axis, then scale and offset.

    x, result: (..., size).
    size: the number of features; found at the first call if not given.
    layout: that of the scale (size,); offset_layout: that of the offset, `layout` if not given.
    affine: whether there are a scale and an offset to train.
    epsilon: added to the variance. Keras has 1e-3. dtype: the dtype of scale and offset.

    Source: Ba et al. 2016. Raises ShapeError for an x of another number of features.

    >>> gdt.nn.LayerNorm()(gdt.asarray([[1.0, 3.0]], "float32")).numpy().round(3).tolist()
    [[-1.0, 1.0]]
    """

    def __init__(
        self,
        size: int | None = None,
        layout: Layout | None = None,
        *,
        offset_layout: Layout | None = None,
        affine: bool = True,
        epsilon: float = 1e-5,
        dtype: Any = np.float32,
    ) -> None:
        specs = _parameter_specs("LayerNorm", layout, offset_layout, affine, dtype)
        super().__init__(size, epsilon, specs)

    def __call__(self, x: Any) -> DistributedArray:
        self._fit(x)
        return layer_norm(x, self.scale, self.offset, self.epsilon)


@checked_class(eager=True)
class RMSNorm(_FeatureNorm):
    """Division of x by the root of the mean of its squares over the last axis, then a scale.

    x, result: (..., size).
    size: the number of features; found at the first call if not given. layout: that of the scale
        (size,). affine: whether there is a scale. epsilon: added to the mean of squares.

    Source: Zhang and Sennrich 2019. Raises ShapeError for an x of another number of features.

    >>> gdt.nn.RMSNorm()(gdt.asarray([[3.0, 4.0]], "float32")).numpy().round(3)
    array([[0.849, 1.131]], dtype=float32)
    """

    def __init__(
        self,
        size: int | None = None,
        layout: Layout | None = None,
        *,
        affine: bool = True,
        epsilon: float = 1e-6,
        dtype: Any = np.float32,
    ) -> None:
        specs = _parameter_specs("RMSNorm", layout, None, affine, dtype)
        specs.pop("offset", None)
        super().__init__(size, epsilon, specs)

    def __call__(self, x: Any) -> DistributedArray:
        self._fit(x)
        return rms_norm(x, self.scale, self.epsilon)


@checked_class(eager=True)
class GroupNorm(_FeatureNorm):
    """Normalisation of every image over its pixels and each group of neighbouring channels.

    x, result: (batch, ..., size).
    groups: the number of groups, which divides the channels; 1 is layer normalisation of images.
    size: the number of channels; found at the first call if not given.
    layout, offset_layout, affine, epsilon, dtype: as of `LayerNorm`.

    Source: Wu and He 2018. Raises ShapeError for channels that do not fit.

    >>> x = gdt.asarray([[1.0, 3.0, 5.0, 9.0]], "float32")
    >>> gdt.nn.GroupNorm(2)(x).numpy().round(3).tolist()
    [[-1.0, 1.0, -1.0, 1.0]]
    """

    def __init__(
        self,
        groups: int,
        size: int | None = None,
        layout: Layout | None = None,
        *,
        offset_layout: Layout | None = None,
        affine: bool = True,
        epsilon: float = 1e-5,
        dtype: Any = np.float32,
    ) -> None:
        check_sizes(groups=groups)
        if size is not None and size % groups:
            raise error(ArgumentError, f"{groups} groups do not divide {size} channels")
        self.groups = groups
        specs = _parameter_specs("GroupNorm", layout, offset_layout, affine, dtype)
        super().__init__(size, epsilon, specs)

    def __call__(self, x: Any) -> DistributedArray:
        self._fit(x)
        return group_norm(x, self.groups, self.scale, self.offset, self.epsilon)

    def describe(self) -> str:
        """Return the groups and the number of channels as text."""
        return f"{self.groups} groups of {super().describe()}"
