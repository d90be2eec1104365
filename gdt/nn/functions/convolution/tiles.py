"""Convolution of tiles: three ops, for the results and the gradients in images and in kernels,
which are each other's gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from gdt.backend import empty, threads
from gdt.engine.declaration import FROM_ENGINE
from gdt.engine.launcher import Launcher
from gdt.engine.op import op
from gdt.engine.plan import EXACT
from gdt.nn.functions.convolution import blocks, kernels
from gdt.nn.functions.convolution.windows import WindowSteps, coordinates, lengths
from gdt.sharding.array_type import ArrayType
from gdt.sharding.rule import RuleSpec

Block = Any
Numbers = tuple[int, ...]

EXACT.add(WindowSteps)


def image_term(letter: str, rank: int, channels: str) -> str:
    """Return the term of tiled images: a tile and a length of it for each spatial axis."""
    return " ".join(["...", *(f"p{i} {letter}{i}" for i in range(rank)), channels])


def _rule_of(order: Sequence[int]) -> Callable[..., RuleSpec]:
    """Return the rule of one of the three ops.

    order: the positions in (images, kernel, results) of its two operands and of its output.
    """

    def rule(a: ArrayType, b: ArrayType, *, numbers: Numbers, how: WindowSteps) -> RuleSpec:
        rank = len(how.taps)
        channels, results = ("(g c)", "(g o)") if how.groups > 1 else ("c", "o")
        kernel = " ".join([*(f"k{i}" for i in range(rank)), "c", results])
        terms = [image_term("n", rank, channels), kernel, image_term("m", rank, results)]
        left, right, out = (terms[i] for i in order)
        sizes = {f"m{i}": n for i, n in enumerate(numbers)}
        sizes |= {f"n{i}": n for i, n in enumerate(lengths(numbers, how))}
        sizes |= {f"k{i}": n for i, n in enumerate(how.taps)}
        if how.groups > 1:
            shapes = {order[0]: a.shape, order[1]: b.shape}
            sizes["g"] = how.groups
            if 1 in shapes:
                sizes["c"], sizes["o"] = shapes[1][-2], shapes[1][-1] // how.groups
            else:
                sizes["c"], sizes["o"] = (shapes[i][-1] // how.groups for i in (0, 2))
        whole = frozenset(f"{letter}{i}" for letter in "nmk" for i in range(rank))
        return RuleSpec(f"{left}, {right} -> {out}", sizes, whole)

    return rule


def tiles_first(xp: Any, x: Block, rank: int) -> Block:
    """Return a block of tiled images with the axes of tiles before those of lengths."""
    lead = x.ndim - 2 * rank - 1
    order = [*range(lead, x.ndim - 1, 2), *range(lead + 1, x.ndim - 1, 2)]
    return x.transpose(*range(lead), *order, x.ndim - 1)


def tiles_in_place(xp: Any, y: Block, rank: int) -> Block:
    """Return a block with the axes of tiles first as it is kept: before each length its tiles."""
    lead = y.ndim - 2 * rank - 1
    order = [a for i in range(rank) for a in (lead + i, lead + rank + i)]
    return y.transpose(*range(lead), *order, y.ndim - 1)


def _in_block(how: WindowSteps, images: Sequence[int], kernel: Sequence[int]) -> WindowSteps:
    """Return the windows with the number of groups that a block holds."""
    return how if how.groups == 1 else how._replace(groups=images[-1] // max(kernel[-2], 1))


def _mesh_shape(mesh_ndim: int, *blocks: Block) -> tuple[int, ...]:
    return tuple(max(sizes) for sizes in zip(*(b.shape[:mesh_ndim] for b in blocks), strict=True))


def _axes_of_one(x: Block, other: Block, mesh_ndim: int, how: WindowSteps) -> tuple[int, ...]:
    """Return the mesh axes along which `x` has several parts and `other` has one, whose windows are
    then copied once for all of them; none where channels are in groups."""
    axes = range(mesh_ndim if how.groups == 1 else 0)
    return tuple([a for a in axes if x.shape[a] > 1 and other.shape[a] == 1])


def _side_by_side(xp: Any, x: Block, axes: tuple[int, ...]) -> Block:
    """Return a block with its parts along mesh axes side by side along its last axis."""
    if not axes:
        return x
    last, joined = x.ndim - 1, [1 if a in axes else n for a, n in enumerate(x.shape)]
    joined[last] *= math.prod(x.shape[a] for a in axes)
    return xp.moveaxis(x, axes, range(last - len(axes), last)).reshape(joined)


def _apart(xp: Any, y: Block, axes: tuple[int, ...], sizes: Sequence[int], axis: int) -> Block:
    """Return a block whose parts along mesh axes of these sizes lie side by side along `axis` as a
    block without gaps of all parts."""
    if not axes:
        return y
    before = [n for a, n in enumerate(y.shape[:axis]) if a not in axes]
    whole = y.reshape(*before, *sizes, y.shape[axis] // math.prod(sizes), *y.shape[axis + 1 :])
    at = range(len(before), len(before) + len(axes))
    return xp.ascontiguousarray(xp.moveaxis(whole, at, axes))


def _by_kernel(
    function: Callable[..., None], shape: tuple[int, ...], images: Block, kernel: Block, out: Block,
    how: WindowSteps,
) -> None:  # fmt: skip
    """Call a function of images, one kernel, memory for what it computes and windows: once where
    all coordinates of the mesh have one kernel, else for each of them."""
    one = (0,) * len(shape)
    if math.prod(kernel.shape[: len(shape)]) == 1:
        function(images, kernel[one], out, how)
    else:
        for at, part, weight in coordinates(shape, images, kernel):
            function(part, weight[one], out[at], how)


def _convolve(
    convolve: Callable[..., None],
    xp: Any,
    x: Block,
    kernel: Block,
    numbers: Numbers,
    how: WindowSteps,
) -> Block:
    """Convolve tiles by `convolve`, a function of images, one kernel, memory for the results and
    windows."""
    rank, how = len(numbers), _in_block(how, x.shape, kernel.shape)
    mesh_ndim, images = kernel.ndim - rank - 2, tiles_first(xp, x, rank)
    axes = _axes_of_one(kernel, images, mesh_ndim, how)
    joined = _side_by_side(xp, kernel, axes)
    shape = _mesh_shape(mesh_ndim, x, joined)
    lead = images.shape[mesh_ndim : -rank - 1]
    dtype = xp.result_type(x.dtype, kernel.dtype)
    out = empty(xp, (*shape, *lead, *numbers, joined.shape[-1]), dtype)
    _by_kernel(convolve, shape, images, joined, out, how)
    out = _apart(xp, out, axes, [kernel.shape[a] for a in axes], out.ndim - 1)
    return tiles_in_place(xp, out, rank)


@op(_rule_of((0, 1, 2)), linear="x, kernel")
def convolve_tiles(
    xp: Any, x: Block, kernel: Block, /, numbers: Numbers, how: WindowSteps
) -> Block:
    """Convolve tiles: `numbers` results along the spatial axes of every tile."""
    return _convolve(partial(blocks.convolve, xp), xp, x, kernel, numbers, how)


def _convolve_on_gpus(
    launcher: Launcher, x: Block, kernel: Block, /, numbers: Numbers, how: WindowSteps
) -> Block:
    ways = kernels.convolve, blocks.convolve
    return kernels.computed(launcher, _convolve, ways, x, kernel, numbers, how)


convolve_tiles.kernel(_convolve_on_gpus, has_library=True)


def _input_gradient(
    gradient: Callable[..., None], xp: Any, g: Block, kernel: Block, numbers: Numbers,
    how: WindowSteps, block_shape: Any,
) -> Block:  # fmt: skip
    """Compute the gradient in tiles by `gradient`, a function of cotangents, one kernel, memory for
    the gradient and windows."""
    rank, how = len(numbers), _in_block(how, block_shape, kernel.shape)
    mesh_ndim, results = kernel.ndim - rank - 2, tiles_first(xp, g, rank)
    shape = _mesh_shape(mesh_ndim, g, kernel)
    lead, channels = results.shape[mesh_ndim : -rank - 1], block_shape[-1]
    dtype = xp.result_type(g.dtype, kernel.dtype)
    out = empty(xp, (*shape, *lead, *lengths(numbers, how), channels), dtype)
    _by_kernel(gradient, shape, results, kernel, out, how)
    return tiles_in_place(xp, out, rank)


@op(_rule_of((2, 1, 0)), linear="g, kernel")
def convolution_input_gradient(
    xp: Any,
    g: Block,
    kernel: Block,
    /,
    numbers: Numbers,
    how: WindowSteps,
    *,
    block_shape: Any = FROM_ENGINE,
) -> Block:
    """Return the gradient of `convolve_tiles` in x."""
    gradient = partial(blocks.input_gradient, xp)
    return _input_gradient(gradient, xp, g, kernel, numbers, how, block_shape)


def _input_gradient_on_gpus(
    launcher: Launcher, g: Block, kernel: Block, /, numbers: Numbers, how: WindowSteps, *,
    block_shape: Any,
) -> Block:  # fmt: skip
    ways = kernels.input_gradient, blocks.input_gradient
    return kernels.computed(launcher, _input_gradient, ways, g, kernel, numbers, how, block_shape)


convolution_input_gradient.kernel(_input_gradient_on_gpus, has_library=True)


def _kernel_gradient(
    gradient: Callable[..., Block], xp: Any, x: Block, g: Block, numbers: Numbers,
    how: WindowSteps, block_shape: Any,
) -> Block:  # fmt: skip
    """Compute the gradient in kernels by `gradient`, a function of images, cotangents, the shape of
    a kernel and windows."""
    rank, how = len(numbers), _in_block(how, x.shape, block_shape)
    mesh_ndim = len(block_shape) - rank - 2
    images, results = tiles_first(xp, x, rank), tiles_first(xp, g, rank)
    # Parts of the channels of images alone, and parts of those of results alone.
    own = _axes_of_one(images, results, mesh_ndim, how)
    others = _axes_of_one(results, images, mesh_ndim, how)
    sizes, other_sizes = [x.shape[a] for a in own], [g.shape[a] for a in others]
    images, results = _side_by_side(xp, images, own), _side_by_side(xp, results, others)
    shape = _mesh_shape(mesh_ndim, images, results)
    kernel_shape = (*block_shape[mesh_ndim:-2], images.shape[-1] // how.groups, results.shape[-1])
    dtype = xp.result_type(x.dtype, g.dtype)
    out = xp.empty((*shape, *kernel_shape), dtype)
    places = [*coordinates(shape, images, results)]

    def run(some: slice) -> None:
        for at, part, cotangent in places[some]:
            out[at] = gradient(part, cotangent, kernel_shape, how)

    work = blocks.work_of(xp, images, numbers, kernel_shape[-1] // how.groups, how)
    threads.in_turns(run, min(len(places), threads.count_for(work)))
    out = _apart(xp, out, own, sizes, out.ndim - 2)
    return _apart(xp, out, others, other_sizes, out.ndim - 1)


@op(_rule_of((0, 2, 1)), linear="x, g")
def convolution_kernel_gradient(
    xp: Any,
    x: Block,
    g: Block,
    /,
    numbers: Numbers,
    how: WindowSteps,
    *,
    block_shape: Any = FROM_ENGINE,
) -> Block:
    """Return the gradient of `convolve_tiles` in the kernel."""
    gradient = partial(blocks.kernel_gradient, xp)
    return _kernel_gradient(gradient, xp, x, g, numbers, how, block_shape)


def _kernel_gradient_on_gpus(
    launcher: Launcher,
    x: Block,
    g: Block,
    /,
    numbers: Numbers,
    how: WindowSteps,
    *,
    block_shape: Any,
) -> Block:
    ways = kernels.kernel_gradient, blocks.kernel_gradient
    return kernels.computed(launcher, _kernel_gradient, ways, x, g, numbers, how, block_shape)


convolution_kernel_gradient.kernel(_kernel_gradient_on_gpus, has_library=True)

convolve_tiles.vjp(
    lambda g, out, x, kernel, *, numbers, how: convolution_input_gradient(
        g, kernel, numbers=numbers, how=how
    ),
    lambda g, out, x, kernel, *, numbers, how: convolution_kernel_gradient(
        x, g, numbers=numbers, how=how
    ),
    reads=("kernel", "x"),
)
convolution_input_gradient.vjp(
    lambda c, out, g, kernel, *, numbers, how: convolve_tiles(c, kernel, numbers=numbers, how=how),
    lambda c, out, g, kernel, *, numbers, how: convolution_kernel_gradient(
        c, g, numbers=numbers, how=how
    ),
)
convolution_kernel_gradient.vjp(
    lambda c, out, x, g, *, numbers, how: convolution_input_gradient(
        g, c, numbers=numbers, how=how
    ),
    lambda c, out, x, g, *, numbers, how: convolve_tiles(x, c, numbers=numbers, how=how),
)
