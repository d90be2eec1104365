"""Layers, activations, initialisers and losses: what models are made of.

A layer is a `Module`: its arrays are its parameters, its `__call__` computes. Layouts are arguments
of the layers; nothing else in a model depends on the mesh. `LayoutMap` sets them from outside, by
the names of the parameters.
"""

from gdt.nn import activations, initializers, losses
from gdt.nn.activations import Activation
from gdt.nn.dropout import Dropout
from gdt.nn.embedding import Embedding
from gdt.nn.layers import Add, Concatenate, Dense, Flatten, Residual, Sequential
from gdt.nn.layout_map import LayoutMap
from gdt.nn.module import Module
from gdt.nn.normalization import BatchNorm, GroupNorm, LayerNorm, RMSNorm

__all__ = [
    "Activation",
    "Add",
    "BatchNorm",
    "Concatenate",
    "Dense",
    "Dropout",
    "Embedding",
    "Flatten",
    "GroupNorm",
    "LayerNorm",
    "LayoutMap",
    "Module",
    "RMSNorm",
    "Residual",
    "Sequential",
    "activations",
    "initializers",
    "losses",
]
