"""Convolutions of channels-last images: (batch, spatial axes..., channels).

Channels-first images are transposed before the model: `gdt.moveaxis(x, 1, -1)`. Images may be split
along their spatial axes; see `gdt.convolution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from gdt.arguments import checked_class
from gdt.array.array import DistributedArray
from gdt.errors import ArgumentError, ShapeError, error
from gdt.nn import activations, initializers
from gdt.nn.activations import Function
from gdt.nn.functions.convolution.op import convolution, transposed_convolution
from gdt.nn.initializers import Initializer
from gdt.nn.module import Module
from gdt.nn.parameters import ParameterSpec, check_sizes, features_of, in_compute_dtype, mesh_of
from gdt.ops.blocks.windows import Padding, one_for_each_axis, paddings_of
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh


@checked_class(eager=True)
class Convolution(Module):
    """The base of the layers of convolution: activation(convolution(x, weight) + bias).

    x: (batch, spatial axes..., input_channels), result: (batch, ..., channels).
    channels: those of the result. size: the taps of the kernel, an int or one for each spatial
        axis.
    strides, padding, dilation, groups: as of `gdt.convolution`.
    activation: the name of an activation or a function; None for none.
    use_bias: whether there is a bias.
    input_channels: found at the first call if not given.
    weight_layout: the layout of the kernel (taps..., input_channels / groups, channels); replicated
        if not given. bias_layout: that of the bias (channels,), which is split as the kernel's last
        axis if not given.
    initializer, bias_initializer: names of initialisers or functions. dtype: of kernel and bias.
    key: of the random numbers; the next one of `gdt.random` if not given.

    Raises ArgumentError for numbers that are no sizes, ShapeError for an x that does not fit.

    >>> mesh = gdt.create_mesh([("height", 2), ("width", 2)])
    >>> images = gdt.ones((4, 28, 28, 1), layout=gdt.Layout([None, "height", "width", None], mesh))
    >>> gdt.nn.Conv2D(8, 3, padding="same")(images).layout.sharding_specs
    ['unsharded', 'height', 'width', 'unsharded']
    """

    rank: ClassVar[int]
    _channel_axis: ClassVar[int] = -1  # of the kernel, along which it has the result's channels

    def __init__(
        self,
        channels: int,
        size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        activation: str | Function | None = None,
        use_bias: bool = True,
        *,
        input_channels: int | None = None,
        weight_layout: Layout | None = None,
        bias_layout: Layout | None = None,
        initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        dtype: Any = np.float32,
        key: Any = None,
    ) -> None:
        name = type(self).__name__
        check_sizes(channels=channels, groups=groups, input_channels=input_channels)
        self.taps = one_for_each_axis(name, "size", size, self.rank, 1)
        self.strides = one_for_each_axis(name, "strides", strides, self.rank, 1)
        self.dilation = one_for_each_axis(name, "dilation", dilation, self.rank, 1)
        padding = self._padding_of(padding)
        paddings_of(name, padding, self.rank)  # raises for a padding that is none
        self.padding, self.groups, self.channels = padding, groups, channels
        create, create_bias = initializers.get(initializer), initializers.get(bias_initializer)
        self.weight: DistributedArray | None = None
        self.bias: DistributedArray | None = None
        self.activation = activations.get(activation)
        self._parameter_specs = {"weight": ParameterSpec(name, create, dtype, weight_layout, key)}
        if use_bias:
            self._parameter_specs["bias"] = ParameterSpec(
                name, create_bias, dtype, bias_layout, key, 1
            )
        if input_channels is not None:
            self._build(input_channels)

    def _padding_of(self, padding: Padding) -> Padding:
        """Return the padding as `gdt.convolution` takes it."""
        return padding

    def _weight_shape(self, input_channels: int) -> tuple[int, ...]:
        """Return the shape of the kernel; ArgumentError for groups that do not divide channels."""
        if input_channels % self.groups or self.channels % self.groups:
            problem = (
                f"{self.groups} groups do not divide {input_channels} input channels and "
                f"{self.channels} channels"
            )
            raise error(ArgumentError, problem)
        return (*self.taps, input_channels // self.groups, self.channels)

    def _build(self, input_channels: int, mesh: Mesh | None = None) -> None:
        """Create kernel and bias for images of `input_channels` channels."""
        self.weight = self._parameter_specs["weight"].create(
            self._weight_shape(input_channels), mesh
        )
        if "bias" in self._parameter_specs:
            others = [*range(self.rank + 2)]
            del others[self._channel_axis]
            layout = self.weight.layout.delete(others)
            self.bias = self._parameter_specs["bias"].create((self.channels,), layout=layout)
        del self._parameter_specs

    def _convolve(self, x: Any, weight: Any) -> Any:
        """Return x convolved with the kernel."""
        return convolution(x, weight, self.strides, self.padding, self.dilation, self.groups)

    def __call__(self, x: Any) -> DistributedArray:
        if np.ndim(x) != self.rank + 2:
            problem = f"x has shape {list(np.shape(x))}, and {self.rank + 2} axes are needed"
            remedy = "They are batch, spatial axes and channels."
            raise error(ShapeError, problem, remedy=remedy)
        if self.weight is None:
            self._build(features_of(type(self).__name__, x), mesh_of(self, x))
        x, weight, bias = in_compute_dtype(self, x, self.weight, self.bias)
        y: DistributedArray = self._convolve(x, weight)
        if bias is not None:
            y = y + bias
        return y if self.activation is None else self.activation(y)

    def describe(self) -> str:
        """Return channels, taps, strides and the activation as text."""
        taps = "x".join(map(str, self.taps))
        inputs = "?" if self.weight is None else self._input_channels(self.weight.shape)
        steps = "" if set(self.strides) == {1} else f" / {'x'.join(map(str, self.strides))}"
        name = activations.name_of(self.activation)
        return f"{inputs} -> {self.channels}, {taps}{steps}, {name}"

    def _input_channels(self, weight_shape: Sequence[int]) -> int:
        return weight_shape[-2] * self.groups


class Conv1D(Convolution):
    """A convolution of sequences (batch, length, channels); arguments as of `Convolution`. Padding
    may also be "causal": all before the sequence, so that a result sees no later element.

    >>> gdt.nn.Conv1D(4, 3, padding="causal")(gdt.ones((2, 8, 3))).shape
    (2, 8, 4)
    """

    rank = 1

    def _padding_of(self, padding: Padding) -> Padding:
        """Return the padding, of a causal convolution as a pair (before, after)."""
        return [((self.taps[0] - 1) * self.dilation[0], 0)] if padding == "causal" else padding


class Conv2D(Convolution):
    """A convolution of images (batch, height, width, channels); arguments as of `Convolution`.

    >>> gdt.nn.Conv2D(4, 3, strides=2, activation="relu")(gdt.ones((2, 9, 8, 3))).shape
    (2, 4, 3, 4)
    """

    rank = 2


class Conv3D(Convolution):
    """A convolution of volumes (batch, depth, height, width, channels); arguments as of
    `Convolution`.

    >>> gdt.nn.Conv3D(4, (1, 2, 2), groups=2)(gdt.ones((2, 3, 8, 8, 2))).shape
    (2, 3, 7, 7, 4)
    """

    rank = 3


@checked_class(eager=True)
class DepthwiseConv2D(Convolution):
    """A convolution of every channel of images by itself; arguments as of `Convolution`, of which
    `channels` is a multiple of the input's channels, or None for as many, and there is no `groups`.

    >>> gdt.nn.DepthwiseConv2D(None, 3)(gdt.ones((2, 8, 8, 3))).shape
    (2, 6, 6, 3)
    """

    rank = 2

    def __init__(
        self,
        channels: int | None,
        size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        dilation: int | Sequence[int] = 1,
        *,
        activation: str | Function | None = None,
        use_bias: bool = True,
        input_channels: int | None = None,
        weight_layout: Layout | None = None,
        bias_layout: Layout | None = None,
        initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        dtype: Any = np.float32,
        key: Any = None,
    ) -> None:
        self._follows_input = channels is None
        super().__init__(
            1 if channels is None else channels,
            size,
            strides,
            padding,
            dilation,
            activation=activation,
            use_bias=use_bias,
            input_channels=input_channels,
            weight_layout=weight_layout,
            bias_layout=bias_layout,
            initializer=initializer,
            bias_initializer=bias_initializer,
            dtype=dtype,
            key=key,
        )

    def _weight_shape(self, input_channels: int) -> tuple[int, ...]:
        """Return the shape of the kernel, which has a group for each channel of the input."""
        self.groups = input_channels
        self.channels = input_channels if self._follows_input else self.channels
        return super()._weight_shape(input_channels)


@checked_class(eager=True)
class _Transposed(Convolution):
    """The base of transposed convolutions, whose kernel has the shape (taps..., channels, input
    channels)."""

    _channel_axis = -2

    def __init__(
        self,
        channels: int,
        size: int | Sequence[int],
        strides: int | Sequence[int] = 1,
        padding: Padding = "valid",
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        activation: str | Function | None = None,
        use_bias: bool = True,
        *,
        output_padding: int | Sequence[int] = 0,
        input_channels: int | None = None,
        weight_layout: Layout | None = None,
        bias_layout: Layout | None = None,
        initializer: str | Initializer = "glorot_uniform",
        bias_initializer: str | Initializer = "zeros",
        dtype: Any = np.float32,
        key: Any = None,
    ) -> None:
        name = type(self).__name__
        self.output_padding = one_for_each_axis(
            name, "output_padding", output_padding, self.rank, 0
        )
        super().__init__(
            channels,
            size,
            strides,
            padding,
            dilation,
            groups,
            activation,
            use_bias,
            input_channels=input_channels,
            weight_layout=weight_layout,
            bias_layout=bias_layout,
            initializer=initializer,
            bias_initializer=bias_initializer,
            dtype=dtype,
            key=key,
        )

    def _weight_shape(self, input_channels: int) -> tuple[int, ...]:
        """Return the shape of the kernel: that of the convolution from the result to x."""
        *taps, inputs, outputs = super()._weight_shape(input_channels)
        return (*taps, outputs // self.groups, inputs * self.groups)

    def _convolve(self, x: Any, weight: Any) -> Any:
        """Return x spread with the kernel."""
        return transposed_convolution(
            x,
            weight,
            self.strides,
            self.padding,
            self.dilation,
            self.groups,
            self.output_padding,
        )

    def _input_channels(self, weight_shape: Sequence[int]) -> int:
        return weight_shape[-1]


class Conv1DTranspose(_Transposed):
    """A transposed convolution of sequences: strides make them longer; arguments as of
    `Convolution`, and `output_padding` of `gdt.transposed_convolution`.

    >>> gdt.nn.Conv1DTranspose(4, 3, strides=2, padding="same")(gdt.ones((2, 8, 3))).shape
    (2, 16, 4)
    """

    rank = 1


class Conv2DTranspose(_Transposed):
    """A transposed convolution of images: strides make them larger; arguments as of `Convolution`,
    and `output_padding` of `gdt.transposed_convolution`.

    >>> gdt.nn.Conv2DTranspose(4, 3, strides=2, padding="same")(gdt.ones((2, 8, 8, 3))).shape
    (2, 16, 16, 4)
    """

    rank = 2
