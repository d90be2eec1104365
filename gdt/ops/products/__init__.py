"""Products: NumPy's functions, einsum's notation, and how blocks are multiplied."""
