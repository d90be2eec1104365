"""Measurements: training steps of gdt, of hand-written NumPy and of other libraries, in one run."""
