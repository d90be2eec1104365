"""Recorded computations: a recorder notes what ran on blocks, a program runs it again, and
`gdt.function` replays whole steps; on GPUs as CUDA graphs.
"""
