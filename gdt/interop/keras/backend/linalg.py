"""Keras' functions of linalg."""
