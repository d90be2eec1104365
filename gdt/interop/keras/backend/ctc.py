"""Connectionist temporal classification: the loss of label sequences, and their decoding.

Source: Graves et al. 2006, "Connectionist Temporal Classification".
"""

from __future__ import annotations

from typing import Any

import numpy as np

import gdt
from gdt.array.array import DistributedArray
from gdt.interop.keras.backend.numpy import promotion
from gdt.interop.keras.backend.variables import convert_to_numpy, convert_to_tensor

IMPOSSIBLE = -1e5
"""The logarithm of the probability of what cannot be; it is finite, so that gradients are."""


def _wide(x: Any) -> DistributedArray:
    x = convert_to_tensor(x)
    return convert_to_tensor(x, promotion(x, "float32"))


def ctc_loss(
    target: Any, output: Any, target_length: Any, output_length: Any, mask_index: int = 0
) -> DistributedArray:
    """Return the negative logarithms of the probabilities of labels.

    target: labels (batch, n); output: logits (batch, steps, classes); lengths (batch,); result:
    (batch,). mask_index: the class that stands for no label.
    """
    target, output = convert_to_tensor(target, "int32"), _wide(output)
    target_length = convert_to_tensor(target_length, "int32")
    output_length = convert_to_tensor(output_length, "int32")
    batch, steps, classes = output.shape
    count = target.shape[1]
    # States: labels with blanks before, between and after, (batch, 2 * count + 1).
    blank = gdt.full((batch, count), mask_index, "int32")
    pairs = gdt.reshape(gdt.stack([blank, target], axis=2), (batch, 2 * count))
    states = gdt.concat([pairs, gdt.full((batch, 1), mask_index, "int32")], axis=1)
    # Two states on, from label to label, leads the way where the labels differ; a label may itself
    # be of the class that stands for no label.
    is_label = gdt.arange(2, 2 * count + 1) % 2 == 1
    differs = (states[:, 2:] != states[:, :-2]) & is_label
    leap = gdt.where(gdt.pad(differs, [(0, 0), (2, 0)]), 0.0, IMPOSSIBLE)
    leap = gdt.astype(leap, output.dtype)
    chosen = gdt.one_hot(states, classes, dtype=output.dtype)
    log = gdt.einsum("btk,bsk->tbs", gdt.log_softmax(output), chosen)
    is_start = gdt.arange(2 * count + 1) < 2
    paths = gdt.where(is_start, log[0], IMPOSSIBLE)  # logarithms of the sums over paths
    for t in range(1, steps):
        before = gdt.pad(paths, [(0, 0), (2, 0)], constant_values=IMPOSSIBLE)
        moved = gdt.logaddexp(paths, before[:, 1:-1])
        moved = gdt.logaddexp(moved, before[:, :-2] + leap) + log[t]
        paths = gdt.where((t < output_length)[:, None], moved, paths)
    last = 2 * target_length
    ends = gdt.stack([last, gdt.maximum(last - 1, 0)], axis=1)
    final = gdt.take_along_axis(paths, gdt.astype(ends, "int64"), axis=1)
    both = gdt.logaddexp(final[:, 0], final[:, 1])
    return -gdt.where(target_length > 0, both, final[:, 0])


def ctc_decode(
    inputs: Any,
    sequence_lengths: Any,
    strategy: str = "greedy",
    beam_width: int = 100,
    top_paths: int = 1,
    merge_repeated: bool = True,
    mask_index: int = 0,
) -> tuple[DistributedArray, DistributedArray]:
    """Return the most probable labels (paths, batch, steps), -1 behind their end, and their scores
    (batch, paths). A beam search runs on the host."""
    inputs, lengths = _wide(inputs), convert_to_tensor(sequence_lengths, "int32")
    if strategy == "greedy":
        return _greedy(inputs, lengths, merge_repeated, mask_index)
    if strategy == "beam_search":
        log = convert_to_numpy(gdt.log_softmax(inputs))
        rows = zip(log, convert_to_numpy(lengths), strict=True)
        found = [_beams(x[:n], beam_width, top_paths, mask_index, len(x)) for x, n in rows]
        paths, scores = zip(*found, strict=True)
        return (
            convert_to_tensor(np.stack(paths, axis=1), "int32"),
            convert_to_tensor(np.stack(scores), inputs.dtype),
        )
    raise ValueError(
        f"Invalid strategy {strategy}. Supported values are 'greedy' and 'beam_search'."
    )


def _greedy(
    inputs: DistributedArray,
    lengths: DistributedArray,
    merge_repeated: bool,
    mask_index: int | None,
) -> tuple[DistributedArray, DistributedArray]:
    steps, classes = inputs.shape[1:]
    blank = classes - 1 if mask_index is None else mask_index
    place = gdt.arange(steps)
    is_over = place[None, :] >= lengths[:, None]
    labels = gdt.where(is_over, blank, gdt.astype(gdt.argmax(inputs, axis=-1), "int32"))
    scores = gdt.where(is_over, 0.0, gdt.max(inputs, axis=-1))
    if merge_repeated:
        is_repeated = gdt.pad(labels[:, 1:] == labels[:, :-1], [(0, 0), (1, 0)])
        labels = gdt.where(is_repeated, blank, labels)
    is_blank = labels == blank
    labels = gdt.where(is_blank, -1, labels)
    order = gdt.argsort(gdt.where(is_blank, steps, place), axis=-1)
    labels = gdt.take_along_axis(labels, order, axis=-1)
    return labels[None], -gdt.sum(scores, axis=1)[:, None]


def _beams(
    log: np.ndarray, width: int, top: int, mask_index: int | None, steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the most probable label sequences of one row (steps, classes), and their scores."""
    classes = log.shape[1]
    blank = classes - 1 if mask_index is None else mask_index
    # Of each sequence the logarithms of the probabilities with and without a blank at the end.
    beams = {(): (0.0, -np.inf)}
    for row in log:
        grown: dict[tuple[int, ...], tuple[float, float]] = {}

        def add(
            labels: tuple[int, ...],
            with_blank: float,
            without: float,
            grown: dict[tuple[int, ...], tuple[float, float]] = grown,
        ) -> None:
            have = grown.get(labels, (-np.inf, -np.inf))
            grown[labels] = np.logaddexp(have[0], with_blank), np.logaddexp(have[1], without)

        for labels, (with_blank, without) in beams.items():
            both = np.logaddexp(with_blank, without)
            add(labels, both + row[blank], -np.inf)
            for label in range(classes):
                if label == blank:
                    continue
                is_repeated = labels[-1:] == (label,)
                if is_repeated:
                    add(labels, -np.inf, without + row[label])
                add((*labels, label), -np.inf, (with_blank if is_repeated else both) + row[label])
        ranked = sorted(grown.items(), key=lambda item: (-np.logaddexp(*item[1]), item[0]))
        beams = dict(ranked[:width])
    found = [(labels, np.logaddexp(*p)) for labels, p in beams.items()][:top]
    paths = np.full((top, steps), -1, "int32")
    scores = np.full(top, -np.inf)
    for i, (labels, score) in enumerate(found):
        paths[i, : len(labels)], scores[i] = labels, score
    return paths, scores
