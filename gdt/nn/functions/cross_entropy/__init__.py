"""Cross-entropy of dense and of integer labels: bodies and gradients, kernels, compiled loops."""
