"""Keras' recurrent loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from keras.src import tree

import gdt
from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.variables import convert_to_tensor

Tree = Any


def rnn(
    step_function: Callable[[Tree, tuple[Any, ...]], tuple[Any, Tree]],
    inputs: Tree,
    initial_states: Tree,
    go_backwards: bool = False,
    mask: Any = None,
    constants: Sequence[Any] | None = None,
    unroll: bool = False,
    input_length: Any = None,
    time_major: bool = False,
    zero_output_for_mask: bool = False,
    return_all_outputs: bool = True,
) -> tuple[Any, Any, Tree]:
    """Return the last output, all outputs and the last states of a loop over the steps of `inputs`.

    Where the mask of a step is False, the states stay, and the output is that of the step before,
    or 0 where `zero_output_for_mask`.
    """
    along_time = 0 if time_major else 1
    inputs = tree.map_structure(convert_to_tensor, inputs)
    steps = [gdt.unstack(x, axis=along_time) for x in tree.flatten(inputs)]
    masks = None
    if mask is not None:
        masks = gdt.unstack(gdt.astype(convert_to_tensor(mask), bool), axis=along_time)
    order = range(len(steps[0]))
    states: Tree = initial_states
    outputs: list[Any] = []
    for t in reversed(order) if go_backwards else order:
        x = tree.pack_sequence_as(inputs, [s[t] for s in steps])
        output, new_states = step_function(x, (*states, *(constants or ())))
        if masks is not None:
            before = outputs[-1] if outputs else gdt.zeros_like(output)
            if not outputs and not unroll and not tree.is_nested(states[0]):
                before = states[0]  # that of the step before, in every cell of Keras
            before = gdt.zeros_like(output) if zero_output_for_mask else before
            output = _kept(masks[t], output, before)
            select = lambda new, old, m=masks[t]: _kept(m, new, old)
            new_states = tree.map_structure(select, new_states, states)
        states = new_states
        outputs = [*outputs, output] if return_all_outputs else [output]
    return outputs[-1], gdt.stack(outputs, axis=along_time), states


def _kept(mask: DistributedArray, new: Any, old: Any) -> DistributedArray:
    """Return `new` where the mask (batch, ...) is True, `old` elsewhere."""
    mask = gdt.reshape(mask, (*mask.shape[:1], -1))
    mask = gdt.any(mask, axis=-1)
    return gdt.where(gdt.reshape(mask, (-1, *[1] * (new.ndim - 1))), new, old)


def lstm(*args: Any, **kwargs: Any) -> Any:
    """Raise NotImplementedError, for which Keras runs its own cell, step by step."""
    raise NotImplementedError


gru = bidirectional_lstm = bidirectional_gru = lstm


def cudnn_ok(*args: Any, **kwargs: Any) -> bool:
    """Return False: no layer of several steps is one kernel."""
    return False
