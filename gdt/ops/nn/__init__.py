"""Ops of neural networks; a family with kernels or compiled loops is a folder that holds them."""
