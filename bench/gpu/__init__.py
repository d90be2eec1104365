"""Measurements on an NVIDIA GPU: `make bench-gpu`."""
