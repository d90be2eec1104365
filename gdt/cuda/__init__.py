"""CUDA without arrays: the driver, NVRTC, compiled kernels with checked arguments, tensor maps, and
how each kernel of `kernels/` is launched.
"""
