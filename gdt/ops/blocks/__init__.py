"""Parts that several ops are made of: index intervals, tiles, sums, kernels, compiled loops.

Nothing here is public, and nothing here calls a public op.
"""
