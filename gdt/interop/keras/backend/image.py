"""Keras' functions of image."""
