"""Keras' recurrent loops."""

from typing import Any


def rnn(*args: Any, **kwargs: Any) -> Any:
    """Not yet."""
    raise NotImplementedError


def lstm(*args: Any, **kwargs: Any) -> Any:
    """Have Keras run its own cells."""
    raise NotImplementedError


gru = bidirectional_lstm = bidirectional_gru = lstm


def cudnn_ok(*args: Any, **kwargs: Any) -> bool:
    """Return False: there is no fused layer."""
    return False
