"""LayoutMaps of a few lines for models of common names: MLPs, convolutional networks, transformers.

Each is a function of a mesh. model: the mesh axis that splits features, channels or heads; None for
none. data: the mesh axis over which arrays are kept split between their uses (FSDP; see
`gdt.nn.Sharded`), or None. Arrays whose names no pattern matches are whole, or kept split over
`data`. The maps go by names, and any layout is right: a model of other names computes the same, and
sends more. They are LayoutMaps as others are, to which entries can be added.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gdt.arguments import checked
from gdt.nn.layout_map import LayoutMap
from gdt.nn.sharded import Sharded
from gdt.sharding.layout import MATCH
from gdt.sharding.mesh import Mesh


@checked
def mlp(mesh: Mesh, model: str | None = "model", data: str | None = None) -> LayoutMap:
    """Return a map for dense layers in a list, such as those of a Sequential: in turn their outputs
    and their inputs are split, so that only the result of every second layer is summed.

    Layers of even numbers, from 0, have their outputs split.

    >>> mesh = gdt.create_mesh([("batch", 2), ("model", 4)])
    >>> with gdt.nn.layout_maps.mlp(mesh).scope():
    ...     net = gdt.nn.Sequential(gdt.nn.Dense(8, 16, activation="relu"), gdt.nn.Dense(16, 4))
    >>> net[0].weight.layout.sharding_specs, net[1].weight.layout.sharding_specs
    (['unsharded', 'model'], ['model', 'unsharded'])
    """
    even, odd = r"(.*\.)?\d*[02468]\.", r"(.*\.)?\d*[13579]\."
    split: dict[str, list[Any]] = {
        f"{even}weight": [None, model],
        f"{even}bias": [model],
        f"{odd}weight": [model, None],
    }
    return _layout_map(mesh, split if model else {}, data)


@checked
def cnn(mesh: Mesh, model: str | None = "model", data: str | None = None) -> LayoutMap:
    """Return a map for convolutional networks: the channels that layers return are split, as are
    the arrays of normalisations, whose moments then need no communication over `model`.

    >>> mesh = gdt.create_mesh([("batch", 2), ("model", 4)])
    >>> with gdt.nn.layout_maps.cnn(mesh).scope():
    ...     net = gdt.nn.Sequential(gdt.nn.Conv2D(8, 3), gdt.nn.BatchNorm(8), gdt.nn.Flatten())
    >>> images = gdt.ones((4, 9, 9, 3), "float32", layout=gdt.Layout(["batch"] + [None] * 3, mesh))
    >>> net(images).shape, net[0].weight.layout.sharding_specs[-1]
    ((4, 392), 'model')
    """
    return _layout_map(mesh, {".*": [..., model]} if model else {}, data)


@checked
def transformer(
    mesh: Mesh,
    model: str | None = "model",
    data: str | None = None,
    *,
    sequence: bool = False,
    stage: str | None = None,
    expert: str | None = None,
) -> LayoutMap:
    """Return a map for transformers: heads, the hidden features of dense layers and the vocabulary
    are split (tensor parallel).

    Attention is a `gdt.nn.MultiHeadAttention`; the dense layers of a block are called `up`, perhaps
    `gate`, and `down`; the table of the vocabulary `table` or `tokens`. sequence: whether the
    positions are split over `model` between attention and dense layers (sequence parallel); the
    attention is then an attribute `attention`, and the name of a normalisation begins with `norm`
    or ends with it. stage: the mesh axis over which the blocks of a `gdt.nn.Pipelined` are split.
    expert: the mesh axis over which the experts of `gdt.nn.MoE` layers are split, such as that of
    the rows of batches.

    Sources: Shoeybi et al. 2019, "Megatron-LM"; Korthikanti et al. 2022, "Reducing Activation
    Recomputation in Large Transformer Models".

    >>> mesh = gdt.create_mesh([("data", 2), ("model", 4)])
    >>> with gdt.nn.layout_maps.transformer(mesh).scope():
    ...     attention = gdt.nn.MultiHeadAttention(4, 8, causal=True)
    >>> attention.query_weight.layout.sharding_specs, attention.output_weight.layout.sharding_specs
    (['unsharded', 'model'], ['model', 'unsharded'])
    """
    columns, rows = r"(.*\.)?(query_|key_|value_|up\.|gate\.)", r"(.*\.)?(output_|down\.)"
    split: dict[str, list[Any]] = {}
    if model is not None:
        split = {
            f"{columns}weight": [None, model],
            f"{columns}bias": [model],
            rf"{rows}weight|(.*\.)?(table|tokens)\.weight": [model, None],
        }
    if model is not None or expert is not None:
        split |= {
            r"(.*\.)?up_weight": [expert, None, model],
            r"(.*\.)?up_bias": [expert, model],
            r"(.*\.)?down_weight": [expert, model, None],
            r"(.*\.)?down_bias": [expert, None],
        }
    layouts = _layout_map(mesh, split, data, stage)
    if sequence and model is not None:
        layouts[r"(.*\.)?(table|tokens|attention|down)/output"] = [MATCH, model, None]
        layouts[r"(.*\.)?(norm\w*|\w*norm)/output"] = [MATCH, None, None]
    return layouts


def _layout_map(
    mesh: Mesh, split: Mapping[str, list[Any]], data: str | None, stage: str | None = None
) -> LayoutMap:
    """Return a map of sharding specs by pattern; data: the mesh axis over which all arrays are kept
    split, or None; stage: the one over which the arrays of a pipeline are split too."""
    layouts = LayoutMap(mesh, allow_unmatched=True)
    if stage is not None:
        block = r"(.*\.)?block\."
        others = "".join(f"(?!{pattern})" for pattern in split)
        split = {
            **{f"{block}(?:{pattern})": [stage, *specs] for pattern, specs in split.items()},
            f"{block}{others}": [stage, ...],
            **{f"(?!{block})(?:{pattern})": specs for pattern, specs in split.items()},
        }
    for pattern, specs in split.items():
        is_kept_so = data is None or data in specs
        layouts[pattern] = specs if is_kept_so else Sharded(kept=data, used=specs)
    if data is not None:
        others = "".join(f"(?!{pattern})" for pattern in split)
        layouts[f"{others}.*"] = Sharded(kept=data)
    return layouts
