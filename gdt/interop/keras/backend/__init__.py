"""The backend that Keras gets in the place of its own `keras.src.backend.numpy`.

Each module has the functions that Keras' module of the same name has, with Keras' names, arguments
and rules of dtypes: `keras.backend.result_type` says what operands become, and gdt's functions
compute. They take Keras' variables for arrays.
"""

from keras.src.backend.common.name_scope import name_scope

from gdt.interop.keras.backend import core, image, linalg, math, nn, numpy, random
from gdt.interop.keras.backend.core import (
    IS_THREAD_SAFE,
    SUPPORTS_COMPLEX_DTYPES,
    SUPPORTS_RAGGED_TENSORS,
    SUPPORTS_SPARSE_TENSORS,
    Variable,
    cast,
    compute_output_spec,
    cond,
    convert_to_numpy,
    convert_to_tensor,
    device_scope,
    is_tensor,
    random_seed_dtype,
    scatter,
    shape,
    stop_gradient,
    vectorized_map,
)
from gdt.interop.keras.backend.rnn import (
    bidirectional_gru,
    bidirectional_lstm,
    cudnn_ok,
    gru,
    lstm,
    rnn,
)
