"""Keras' functions of math."""
