"""What ops are made of: functions of blocks and of index intervals, kernels and compiled loops.

Nothing here is public, and nothing here calls a public op.
"""
