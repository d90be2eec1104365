"""The pages of the reference, and which public names each of them holds."""

from __future__ import annotations

from dataclasses import dataclass, field

from docs.extensions.public_names import Name, public_names


@dataclass(frozen=True)
class Group:
    """A page: its file, title and first paragraph, and the modules that define its names.

    `shown` are modules all of whose names stand on the page; `defined` are, of the names of `gdt`,
    the modules that define them (`*` stands for the modules of a package), or names themselves.
    """

    file: str
    title: str
    text: str
    shown: list[str] = field(default_factory=list)
    defined: list[str] = field(default_factory=list)


GROUPS = {
    "Arrays and layouts": [
        Group(
            "array", "The array", "`gdt.DistributedArray`: one array, split over a mesh. "
            "[Arrays and layouts](../../arrays-and-layouts.md) is the guide.",
            defined=["gdt.array.*"],
        ),
        Group(
            "layouts", "Meshes and layouts",
            "A mesh names the devices, a layout says how the axes of an array are split over them.",
            defined=["gdt.sharding.*", "MATCH", "UNSHARDED"],
        ),
        Group(
            "moving", "Moving and placing arrays",
            "Other layouts for an array, arrays of parts that devices have, functions of shards.",
            defined=["relayout", "relayout_like", "gdt.functions.packing",
                     "gdt.functions.placement", "gdt.functions.shards"],
        ),
    ],
    "NumPy's functions": [
        Group(
            "creation", "Creating arrays", "All take `layout=` and `device=` (a mesh).",
            defined=["gdt.ops.creation", "gdt.ops.ranges", "gdt.functions.spaced",
                     "gdt.functions.grids", "gdt.ops.matrices", "gdt.functions.index_tricks"],
        ),
        Group(
            "elementwise", "Element-wise functions",
            "Operands may be split in any way; NumPy's ufuncs have `reduce`, `accumulate`, "
            "`reduceat`, `outer` and `at` here too.",
            defined=["gdt.ops.elementwise", "gdt.ops.exponential", "gdt.ops.powers",
                     "gdt.ops.angles", "gdt.ops.bits", "gdt.ops.rounding", "gdt.ops.comparison"],
        ),
        Group(
            "reductions", "Reductions and statistics",
            "Along a split axis, each device reduces its part; the result is a partial sum until "
            "its value is needed.",
            defined=["gdt.ops.reductions", "gdt.ops.scans", "gdt.ops.statistics",
                     "gdt.ops.extrema", "gdt.functions.averages", "gdt.functions.quantiles",
                     "gdt.functions.nan_functions", "gdt.functions.histograms"],
        ),
        Group(
            "rearranging", "Shapes, joining and rearranging", "Views where NumPy's are views.",
            defined=["gdt.ops.shapes", "gdt.ops.rearranging", "gdt.ops.joining", "gdt.ops.padding",
                     "gdt.functions.assembling", "gdt.functions.repeating",
                     "gdt.functions.editing", "copy"],
        ),
        Group(
            "indexing", "Indexing and selecting", "Elements by index arrays, masks and conditions.",
            defined=["gdt.ops.indexing", "gdt.functions.index_arrays", "gdt.ops.taking",
                     "gdt.ops.along_axis", "gdt.ops.masks", "gdt.functions.selection",
                     "gdt.functions.assigning", "gdt.ops.writing"],
        ),
        Group(
            "sorting", "Sorting, searching and sets",
            "A split axis is sorted in shares: an all-to-all, no gathering.",
            defined=["gdt.ops.sorting", "gdt.ops.searching", "gdt.functions.sets"],
        ),
        Group(
            "products", "Products, polynomials and calculus",
            "Matrix products, contractions, convolutions, polynomials, differences, interpolation.",
            defined=["gdt.ops.products.*", "gdt.functions.einsum", "gdt.functions.vectors",
                     "gdt.ops.convolving", "gdt.linalg.fitting", "gdt.functions.polynomials",
                     "gdt.functions.differences", "gdt.ops.interpolation",
                     "gdt.functions.window_functions"],
        ),
        Group("linalg", "gdt.linalg", "`numpy.linalg` on split arrays.", shown=["gdt.linalg"]),
        Group("fft", "gdt.fft", "`numpy.fft` on split arrays.", shown=["gdt.fft"]),
        Group(
            "random", "gdt.random",
            "Numbers depend on a seed and on an element's index alone: every layout and every "
            "number of processes draws the same ones.",
            shown=["gdt.random"],
        ),
        Group(
            "dtypes-and-files", "Dtypes, files, printing and constants",
            "What programs of NumPy use beside arrays.",
            defined=["gdt.functions.dtypes", "gdt.functions.files", "gdt.functions.interchange",
                     "gdt.functions.printing", "gdt.functions.closeness",
                     "gdt.functions.packed_bits", "gdt.ops.datasets", "numpy", "numpy.*",
                     "ml_dtypes", "e", "euler_gamma", "inf", "nan", "newaxis", "pi"],
        ),
    ],
    "Gradients and recorded steps": [
        Group(
            "gradients", "Gradients", "Of every function of gdt, and of gradients.",
            defined=["gdt.autodiff.*"],
        ),
        Group(
            "recorded", "Recorded steps",
            "[Recorded steps](../../recorded-steps.md) says what a recording promises.",
            defined=["gdt.programs.*"],
        ),
        Group(
            "extending", "Ops of one's own",
            "[Adding an op](../../adding-an-op.md) shows how they are used.",
            defined=["gdt.engine.*"],
        ),
    ],
    "Networks and training": [
        Group(
            "layers", "Layers and models",
            "[Layers](../../layers.md) is the guide; [the tables](../../tables.md) list them all.",
            shown=["gdt.nn"],
        ),
        Group(
            "network-functions", "Functions of networks", "What layers are made of.",
            defined=["gdt.nn.*"],
        ),
        Group(
            "layout-maps", "gdt.nn.layout_maps", "Layouts for models by common names of layers.",
            shown=["gdt.nn.layout_maps"],
        ),
        Group("activations", "gdt.nn.activations", "Activations by name.",
              shown=["gdt.nn.activations"]),
        Group("initializers", "gdt.nn.initializers", "First values of parameters, by name.",
              shown=["gdt.nn.initializers"]),
        Group("losses", "gdt.nn.losses", "Functions `(targets, predictions)`; targets come first, "
              "as in Keras.", shown=["gdt.nn.losses"]),
        Group("optim", "gdt.optim", "Optimizers, schedules and clipping.", shown=["gdt.optim"]),
        Group("metrics", "gdt.metrics", "Numbers that measure a model, added up over batches.",
              shown=["gdt.metrics"]),
        Group(
            "training", "gdt.training",
            "Loops, callbacks and strategies. [Training in Keras' words](../../training.md) and "
            "[A training loop of one's own](../../training-loop.md) are the guides.",
            shown=["gdt.training"], defined=["gdt.training.*"],
        ),
        Group("data", "gdt.data", "Batches of arrays and files.", shown=["gdt.data"]),
        Group("checkpoint", "gdt.checkpoint", "Trees of arrays in files.",
              shown=["gdt.checkpoint"], defined=["gdt.checkpoint.*"]),
        Group("saving", "gdt.saving", "Models in files.", shown=["gdt.saving"],
              defined=["gdt.saving.*"]),
        Group("estimators", "gdt.estimators", "scikit-learn's estimators, trained on a mesh.",
              shown=["gdt.estimators"]),
    ],
    "Tools": [
        Group("debugging", "Debugging", "[Debugging](../../debugging.md) is the guide.",
              defined=["gdt.debug.*"]),
        Group("prediction", "gdt.prediction",
              "[Will it fit, and how fast?](../../prediction.md) is the guide.",
              shown=["gdt.prediction"], defined=["gdt.prediction.*"]),
        Group("settings", "Settings and memory", "Choices for a block of code, or from there on.",
              defined=["gdt.settings", "gdt.backend"]),
        Group("distributed", "gdt.distributed",
              "[Several processes](../../processes.md) is the guide.", shown=["gdt.distributed"]),
        Group("testing", "gdt.testing", "The oracle that compares any layout with one device.",
              shown=["gdt.testing"]),
        Group("errors", "gdt.errors", "Errors are a `GdtError` and an error of Python's.",
              shown=["gdt.errors"]),
    ],
}  # fmt: skip


def _is_defined(name: Name, pattern: str) -> bool:
    module = getattr(name.value, "__module__", None) or ""
    if pattern.endswith(".*"):
        return f"{module}.".startswith(pattern[:-1])
    return pattern in (module, name.short)


def grouped() -> dict[str, list[Name]]:
    """The public names of each page; a name that belongs to none, or to two, is an error."""
    names = public_names()
    pages: dict[str, list[Name]] = {}
    groups = [group for part in GROUPS.values() for group in part]
    for group in groups:
        pages[group.file] = [name for module in group.shown for name in names[module]]
    page, problems = "", []
    for name in names["gdt"]:
        if name.owner is None:
            found = [g.file for g in groups if any(_is_defined(name, p) for p in g.defined)]
            if len(found) != 1:
                problems.append(
                    f"{name.text}, of {getattr(name.value, '__module__', '?')}: {found}"
                )
                continue
            (page,) = found
        pages[page].append(name)
    if problems:
        raise ValueError(
            "docs/extensions/groups.py: names on no page, or two: " + "; ".join(problems)
        )
    return pages
