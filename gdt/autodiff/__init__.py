"""Gradients: the tape, the functions that differentiate functions, and how a gradient runs back
over the calls on a tape.
"""
