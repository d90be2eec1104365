"""The order of the gallery: tutorials first, then what needs several of their ideas."""

from __future__ import annotations

ORDER = [
    "dtensor_concepts.py",
    "mnist_core_loop.py",
    "keras_layouts.py",
    "mirrored_strategy.py",
    "imdb_three_schemes.py",
    "cnn_in_tiles.py",
    "gpt_nine_schemes.py",
    "will_it_fit.py",
    "fsdp_streams.py",
    "components_and_kmeans.py",
    "heat_equation.py",
]


class GalleryOrder:
    """A key by which sphinx-gallery sorts the names of files."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, filename: str) -> int:
        return ORDER.index(filename)

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__}>"  # the same in every build: it is part of the configuration
        )
