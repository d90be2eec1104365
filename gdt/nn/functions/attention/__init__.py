"""Attention that never holds the matrix of scores: blockwise in each device, a ring between them.

The bodies follow Dao et al. 2022 ("FlashAttention", algorithm 1, with the running softmax of
Milakov and Gimelshein 2018); the ring follows Liu et al. 2023 ("Ring attention"). Positions that
are split are tiles, as in `gdt.ops.blocks.windows`: (tiles, positions of a tile). Where one block
holds the whole mesh, all tiles are at hand: they are put end to end and computed together, and only
observers hear of the ring. On GPUs `kernels/attention.cu` computes what the bodies do, or
`attention_mma.cu` and `attention_hopper.cu` on tensor cores.
"""
