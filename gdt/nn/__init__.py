"""Layers, activations, initialisers and losses: what models are made of.

A layer is a `Module`: its arrays are its parameters, its `__call__` computes. Layouts are arguments
of the layers; nothing else in a model depends on the mesh. `LayoutMap` sets them from outside, by
the names of the parameters; for an array that is kept in one layout and used in another, a
`Sharded`, of which the calls of modules take care (`placement`).
"""

from typing import TYPE_CHECKING

import gdt.errors.foreign_names
import gdt.nn.summary  # of which `Module.summary` is made
from gdt.nn import activations, initializers, layout_maps, losses
from gdt.nn.activations import Activation
from gdt.nn.attention import MultiHeadAttention, rotary
from gdt.nn.convolution import (
    Conv1D,
    Conv1DTranspose,
    Conv2D,
    Conv2DTranspose,
    Conv3D,
    Convolution,
    DepthwiseConv2D,
)
from gdt.nn.dropout import Dropout
from gdt.nn.embedding import Embedding
from gdt.nn.layers import Add, Concatenate, Dense, Flatten, Residual, Sequential
from gdt.nn.layout_map import LayoutMap
from gdt.nn.model import Model
from gdt.nn.module import Module
from gdt.nn.moe import MoE, Routing
from gdt.nn.normalization import BatchNorm, GroupNorm, LayerNorm, RMSNorm
from gdt.nn.parameters import mixed_precision
from gdt.nn.pipelined import Pipelined
from gdt.nn.pooling import AveragePool, GlobalAveragePool, GlobalMaxPool, MaxPool
from gdt.nn.recurrent import GRU, LSTM, Recurrent
from gdt.nn.sharded import Sharded
from gdt.nn.symbol import Input

__all__ = [
    "GRU",
    "LSTM",
    "Activation",
    "Add",
    "AveragePool",
    "BatchNorm",
    "Concatenate",
    "Conv1D",
    "Conv1DTranspose",
    "Conv2D",
    "Conv2DTranspose",
    "Conv3D",
    "Convolution",
    "Dense",
    "DepthwiseConv2D",
    "Dropout",
    "Embedding",
    "Flatten",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GroupNorm",
    "Input",
    "LayerNorm",
    "LayoutMap",
    "MaxPool",
    "MoE",
    "Model",
    "Module",
    "MultiHeadAttention",
    "Pipelined",
    "RMSNorm",
    "Recurrent",
    "Residual",
    "Routing",
    "Sequential",
    "Sharded",
    "activations",
    "initializers",
    "layout_maps",
    "losses",
    "mixed_precision",
    "rotary",
]

KERAS_NAMES = {
    f"{name}{rank}D": own
    for name, own in {
        "MaxPooling": "MaxPool", "MaxPool": "MaxPool",
        "AveragePooling": "AveragePool", "AvgPool": "AveragePool",
        "GlobalMaxPooling": "GlobalMaxPool", "GlobalMaxPool": "GlobalMaxPool",
        "GlobalAveragePooling": "GlobalAveragePool", "GlobalAvgPool": "GlobalAveragePool",
    }.items()
    for rank in (1, 2, 3)
} | {
    "BatchNormalization": "BatchNorm", "LayerNormalization": "LayerNorm",
    "GroupNormalization": "GroupNorm", "RMSNormalization": "RMSNorm",
    "Layer": "Module", "InputLayer": "Input", "ReLU": 'Activation("relu")',
    "Softmax": 'Activation("softmax")', "Lambda": "Activation(function)",
    "Reshape": "Activation(function)", "Rescaling": "Activation(function)",
    "Multiply": "Model(inputs, x * y)", "Subtract": "Model(inputs, x - y)",
}  # fmt: skip
"""The names of layers in Keras whose name in gdt is another."""


if not TYPE_CHECKING:  # a type checker would take every name for one of the module

    def __getattr__(name: str) -> object:
        raise gdt.errors.foreign_names.no_attribute(__name__, name, KERAS_NAMES, "gdt.nn.")
