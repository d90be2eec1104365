"""Names of Keras for what gdt.nn and its like lack: errors say which module of Keras has it.

Keras itself runs on gdt: `import gdt.interop.keras`, then `import keras`.
"""

from __future__ import annotations

# By module of gdt, then of Keras.
KERAS_NAMES = {
    "gdt.nn": {
        "layers": (
            "ActivityRegularization AdaptiveAveragePooling1D AdaptiveAveragePooling2D "
            "AdaptiveAveragePooling3D AdaptiveMaxPooling1D AdaptiveMaxPooling2D "
            "AdaptiveMaxPooling3D AdditiveAttention AlphaDropout Attention AugMix AutoContrast "
            "Average Bidirectional CategoryEncoding CenterCrop "
            "ContrastLimitedAdaptiveHistogramEqualization Conv3DTranspose ConvLSTM1D ConvLSTM2D "
            "ConvLSTM3D Convolution1D Convolution1DTranspose Convolution2D "
            "Convolution2DTranspose Convolution3D Convolution3DTranspose Cropping1D Cropping2D "
            "Cropping3D CutMix DepthwiseConv1D Discretization Dot ELU EinsumDense Equalization "
            "FlaxLayer GRUCell GaussianDropout GaussianNoise GroupQueryAttention HashedCrossing "
            "Hashing Identity InputSpec IntegerLookup JaxLayer LSTMCell LeakyReLU Masking "
            "MaxNumBoundingBoxes Maximum MelSpectrogram Minimum MixUp Normalization PReLU "
            "Permute Pipeline RNN RandAugment RandomBrightness RandomColorDegeneration "
            "RandomColorJitter RandomContrast RandomCrop RandomElasticTransform RandomErasing "
            "RandomFlip RandomGaussianBlur RandomGrayscale RandomHue RandomInvert "
            "RandomPerspective RandomPosterization RandomRotation RandomSaturation "
            "RandomSharpness RandomShear RandomTranslation RandomZoom RepeatVector Resizing "
            "ReversibleEmbedding STFTSpectrogram SeparableConv1D SeparableConv2D "
            "SeparableConvolution1D SeparableConvolution2D SimpleRNN SimpleRNNCell Solarization "
            "SpatialDropout1D SpatialDropout2D SpatialDropout3D SpectralNormalization "
            "StackedRNNCells StringLookup TFSMLayer TextVectorization TimeDistributed "
            "TorchModuleWrapper UnitNormalization UpSampling1D UpSampling2D UpSampling3D "
            "Wrapper ZeroPadding1D ZeroPadding2D ZeroPadding3D add average concatenate dot "
            "maximum minimum multiply subtract"
        ),
        "models": ("clone_model load_model model_from_json save_model"),
        "regularizers": (
            "L1 L1L2 L2 OrthogonalRegularizer Regularizer l1 l1_l2 l2 orthogonal_regularizer"
        ),
        "constraints": (
            "Constraint MaxNorm MinMaxNorm NonNeg UnitNorm max_norm min_max_norm non_neg unit_norm"
        ),
    },
    "gdt.nn.losses": {
        "losses": (
            "BinaryFocalCrossentropy CTC CategoricalFocalCrossentropy "
            "CategoricalGeneralizedCrossEntropy CategoricalHinge Circle CosineSimilarity Dice "
            "Hinge LogCosh MeanAbsolutePercentageError MeanSquaredLogarithmicError Poisson "
            "SquaredHinge Tversky binary_focal_crossentropy categorical_focal_crossentropy "
            "categorical_generalized_cross_entropy categorical_hinge circle cosine_similarity "
            "ctc dice hinge log_cosh mean_absolute_percentage_error "
            "mean_squared_logarithmic_error poisson squared_hinge tversky"
        ),
    },
    "gdt.metrics": {
        "metrics": (
            "BinaryCrossentropy BinaryIoU CategoricalCrossentropy CategoricalHinge "
            "ConcordanceCorrelation CosineSimilarity F1Score FBetaScore FalseNegatives "
            "FalsePositives Hinge IoU KLDivergence LogCoshError MeanAbsolutePercentageError "
            "MeanIoU MeanMetricWrapper MeanSquaredLogarithmicError OneHotIoU OneHotMeanIoU "
            "PearsonCorrelation Poisson PrecisionAtRecall R2Score RecallAtPrecision "
            "RootMeanSquaredError SensitivityAtSpecificity SparseCategoricalCrossentropy "
            "SpecificityAtSensitivity SquaredHinge Sum TrueNegatives TruePositives "
            "binary_crossentropy binary_focal_crossentropy categorical_crossentropy "
            "categorical_focal_crossentropy categorical_hinge concordance_correlation hinge "
            "huber kl_divergence log_cosh mean_absolute_error mean_absolute_percentage_error "
            "mean_squared_error mean_squared_logarithmic_error pearson_correlation poisson "
            "sparse_categorical_accuracy sparse_categorical_crossentropy "
            "sparse_top_k_categorical_accuracy squared_hinge top_k_categorical_accuracy"
        ),
    },
    "gdt.optim": {
        "optimizers": (
            "Adadelta Adafactor Adamax Ftrl Lamb LossScaleOptimizer MultiOptimizer Muon Nadam "
            "OptimizerMap ScheduleFreeAdamW"
        ),
        "optimizers.schedules": (
            "CosineDecay CosineDecayRestarts ExponentialDecay InverseTimeDecay "
            "LearningRateSchedule PiecewiseConstantDecay PolynomialDecay"
        ),
    },
    "gdt.training": {
        "callbacks": ("CallbackList OrbaxCheckpoint ProgbarLogger RemoteMonitor SwapEMAWeights"),
    },
    "gdt.nn.initializers": {
        "initializers": (
            "Constant GlorotNormal GlorotUniform HeNormal HeUniform Identity "
            "IdentityInitializer LecunNormal LecunUniform Ones Orthogonal OrthogonalInitializer "
            "RandomNormal RandomUniform STFT STFTInitializer TruncatedNormal VarianceScaling "
            "Zeros constant identity orthogonal random_normal random_uniform stft "
            "variance_scaling"
        ),
    },
    "gdt.nn.activations": {
        "activations": (
            "celu elu exponential gelu glu hard_shrink hard_sigmoid hard_silu hard_swish "
            "hard_tanh leaky_relu linear log_sigmoid log_softmax mish relu relu6 selu sigmoid "
            "silu soft_shrink softmax softplus softsign sparse_plus sparse_sigmoid sparsemax "
            "squareplus swish tanh tanh_shrink threshold"
        ),
    },
    "gdt.saving": {
        "saving": (
            "CustomObjectScope KerasFileEditor custom_object_scope deserialize_keras_object "
            "get_custom_objects get_registered_name get_registered_object "
            "register_keras_serializable save_weights serialize_keras_object"
        ),
    },
    "gdt": {
        "utils": (
            "Config CustomObjectScope FeatureSpace Progbar PyDataset Sequence array_to_img "
            "audio_dataset_from_directory bounding_boxes clear_session custom_object_scope "
            "deserialize_keras_object disable_interactive_logging enable_interactive_logging "
            "get_custom_objects get_file get_registered_name get_registered_object "
            "get_source_inputs image_dataset_from_directory img_to_array "
            "is_interactive_logging_enabled is_keras_tensor load_img model_to_dot normalize "
            "pack_x_y_sample_weight pad_sequences plot_model register_keras_serializable "
            "save_img serialize_keras_object set_random_seed split_dataset standardize_dtype "
            "text_dataset_from_directory timeseries_dataset_from_array to_categorical "
            "unpack_x_y_sample_weight"
        ),
    },
}


def module_of_keras(owner: str, name: str) -> str:
    """Return the module of Keras that has what a module of gdt lacks, such as "layers"; "" if none
    has."""
    modules = KERAS_NAMES.get(owner, {})
    return next((module for module, names in modules.items() if name in names.split()), "")
