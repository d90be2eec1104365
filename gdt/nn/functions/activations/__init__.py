"""Activations: the functions with their gradients, and loops that numba compiles."""
