"""Products: NumPy's functions, and how blocks are multiplied."""
