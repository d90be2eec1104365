"""The part of Keras' layers that is the backend's."""


class NumpyLayer:
    """The base of Keras' `Layer`."""
