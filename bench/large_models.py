"""Training steps of models of published sizes, on abstract devices.

Sources of the sizes: Grattafiori et al. 2024, "The Llama 3 Herd of Models", table 3; Du et al.
2022, "GLaM: Efficient Scaling of Language Models with Mixture-of-Experts", table 4 (64B/64E).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import gdt
from gdt import nn

Step = Callable[[], gdt.DistributedArray]


class LlamaLayer(nn.Module):
    """Attention with 8 heads of keys and values, and SwiGLU."""

    def __init__(self, size: int, hidden: int, heads: int) -> None:
        self.norm1, self.norm2 = nn.RMSNorm(size), nn.RMSNorm(size)
        self.attention = nn.MultiHeadAttention(
            heads, size, key_heads=8, causal=True, rotary=True, use_bias=False
        )
        self.gate = nn.Dense(size, hidden, activation="silu", use_bias=False)
        self.up = nn.Dense(size, hidden, use_bias=False)
        self.down = nn.Dense(hidden, size, use_bias=False)

    def __call__(self, x: gdt.DistributedArray) -> gdt.DistributedArray:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + self.down(self.gate(y) * self.up(y))


class GLaMLayer(nn.Module):
    """Attention, then two dense layers, or 64 experts of such, of which a token asks two."""

    def __init__(self, size: int, hidden: int, heads: int, has_experts: bool) -> None:
        self.norm1, self.norm2 = nn.RMSNorm(size), nn.RMSNorm(size)
        self.attention = nn.MultiHeadAttention(heads, size, causal=True, use_bias=False)
        if has_experts:
            self.experts = nn.MoE(64, hidden, top_k=2, size=size, use_bias=False)
        else:
            self.up = nn.Dense(size, hidden, activation="gelu", use_bias=False)
            self.down = nn.Dense(hidden, size, use_bias=False)

    def __call__(self, x: gdt.DistributedArray) -> gdt.DistributedArray:
        x = x + self.attention(self.norm1(x))
        y = self.norm2(x)
        return x + (self.experts(y) if hasattr(self, "experts") else self.down(self.up(y)))


class LanguageModel(nn.Module):
    """Logits of the next token, of layers that run again in the backward pass."""

    def __init__(self, size: int, vocabulary: int, layers: list[nn.Module]) -> None:
        self.tokens, self.norm = nn.Embedding(vocabulary, size), nn.RMSNorm(size)
        self.blocks = [gdt.checkpointed(layer) for layer in layers]

    def __call__(self, tokens: gdt.DistributedArray) -> gdt.DistributedArray:
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x)
        return self.tokens.logits(self.norm(x))


def llama(layers: int) -> Step:
    """Return the step of Llama 3 with 405 billion parameters, on 16,384 devices: 2,048 texts."""
    mesh = gdt.create_mesh({"data": 2048, "model": 8}, device_type="abstract")
    with gdt.default_mesh(mesh):
        blocks = [LlamaLayer(16_384, 53_248, 128) for _ in range(layers)]
        model = LanguageModel(16_384, 128_256, [*blocks])
    nn.layout_maps.transformer(mesh, data="data", sequence=True).apply(model)
    return _step(model, mesh, 2048, 8192)


def glam(layers: int) -> Step:
    """Return the step of GLaM with 1.2 trillion parameters, on 512 devices: 1,024 texts. Each of
    its experts is on 8 of them; every second layer has experts."""
    mesh = gdt.create_mesh({"data": 64, "model": 8}, device_type="abstract")
    with gdt.default_mesh(mesh):
        blocks = [GLaMLayer(8192, 32_768, 128, n % 2 == 1) for n in range(layers)]
        model = LanguageModel(8192, 256_000, [*blocks])
    nn.layout_maps.transformer(mesh, data="data", sequence=True, expert="data").apply(model)
    return _step(model, mesh, 1024, 1024)


def _step(model: nn.Module, mesh: gdt.Mesh, texts: int, length: int) -> Step:
    """Return a training step by Adam."""
    optimizer = gdt.optim.Adam(1e-3).init(model)
    layout = gdt.Layout(["data", None], mesh)
    tokens, targets = (gdt.zeros((texts, length), np.int32, layout=layout) for _ in range(2))

    def loss(model: Any) -> gdt.DistributedArray:
        return nn.losses.sparse_softmax_cross_entropy(targets, model(tokens))

    def step() -> gdt.DistributedArray:
        value, gradients = gdt.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    return step
