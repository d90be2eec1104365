"""Batch normalisation: bodies and gradients, kernels for GPUs, and loops that numba compiles."""
