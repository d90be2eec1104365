"""What is measured on an NVIDIA GPU: `make bench-gpu`."""
