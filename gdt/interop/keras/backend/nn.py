"""Keras' functions of nn."""
