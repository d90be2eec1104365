"""Plans: how a model, its batches and its backward pass lie on a mesh; what `gdt.plan` ranks."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakSet

from gdt.arguments import checked
from gdt.autodiff import functional
from gdt.autodiff.checkpointed import checkpointed
from gdt.autodiff.scanning import slices
from gdt.errors import ArgumentError, MeshError, ShapeError, error
from gdt.nn.convolution import Convolution
from gdt.nn.layers import Sequential
from gdt.nn.layout_map import OUTPUT, LayoutMap
from gdt.nn.module import Module
from gdt.nn.moe import MoE
from gdt.nn.parameters import awaits_arrays, mesh_of_model
from gdt.nn.pipelined import Pipelined, structure
from gdt.nn.sharded import Sharded
from gdt.ops.shapes import reshape
from gdt.prediction.pricing import Prediction
from gdt.prediction.split_features import WAYS, split_features
from gdt.sharding.layout import Layout
from gdt.sharding.mesh import Mesh
from gdt.state import Place, places
from gdt.state.trees import Tree, leaves, mapped, with_leaves

AXES = ("stage", "replica", "data", "model")
"""The mesh axes of plans: neighbours along the last are nearest."""

BATCH_AXES = ("replica", "data")
STATES = {"": "data parallel", "state": "ZeRO", "all": "FSDP"}
EXPERTS = ("up_weight", "up_bias", "down_weight", "down_bias")
MICRO_BATCHES = "micro-batches"  # a name of a part that is repeated
LINEAR = 6  # a part that is repeated more often is traced at two lengths below this one


@dataclass
class Notes:
    """Notes on a step that is traced: what it asks of its plan, and how often its parts are.

    lengths: how often a part is run, by its name; a part without an entry at its shortest; None
    runs all. counts: how often parts that are shortened are repeated. shapes, itemsizes: of the
    parameters of the whole model. rows: of a batch. blocks: the lengths of the lists that can be
    pipelined. can_checkpoint: whether the model has parts to run again. has_convolutions: whether
    it has layers whose channels can be split. experts: the names of the parameters of `gdt.nn.MoE`
    layers, whose first axis is that of experts. models: those that plans were applied to.
    """

    lengths: dict[str, int] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    itemsizes: dict[str, int] = field(default_factory=dict)
    experts: list[str] = field(default_factory=list)
    rows: int | None = None
    blocks: list[int] = field(default_factory=list)
    can_checkpoint: bool = False
    has_convolutions: bool = False
    models: WeakSet[Module] = field(default_factory=WeakSet)

    def length(self, name: str, count: int) -> int:
        """Return how often a part is run that is repeated `count` times."""
        if count <= LINEAR or self.lengths is None:
            return count
        self.counts[name] = count
        return self.lengths.get(name, shortest(name, count))


def shortest(name: str, count: int) -> int:
    """Return the least length at which a part is traced: layers may differ in turn, and in memory
    are those that are used, gathered ahead and waited for, of which a layer between has one each.
    """
    return (2 if name == MICRO_BATCHES else 4) + count % 2


@dataclass(frozen=True)
class ParallelPlan:
    """A layout of a training step: its mesh, and where arrays, rows and work lie on it.

    mesh: its axes are those of "stage", "replica", "data" and "model" that have several devices;
        of abstract devices, until `on` puts the plan on others. Rows of batches are split over
        `batch_axes`, "replica" and "data" or neither.
    features: how features are split over "model": the name of one of `gdt.nn.layout_maps`, or
        "shapes" for what the shapes of arrays tell; "" for not at all.
    kept: what is kept split over "data": "", "state" (gradients and the state of optimizers, ZeRO)
        or "all" (parameters too, FSDP).
    sequence: whether positions are split over "model" between layers.
    experts: whether the experts of `gdt.nn.MoE` layers are split over "data", and not kept split.
    checkpoint: whether the modules in the model's lists are run again in the backward pass.
    micro_batches: into how many parts the rows of a batch are divided, which follow each other.
    prediction: what a step takes; a part that is repeated is traced at two lengths, and all sums
        are extended to its own, as those of `gdt.predict_layers`: bytes are exact, and the peak is
        within 3 % of that of all parts. None for a plan that was not traced.

    Two plans are equal if they lay out a step alike. Raises ArgumentError for values that are none
    of these.

    >>> mesh = gdt.create_mesh([("data", 4), ("model", 2)])
    >>> plan = gdt.prediction.ParallelPlan(mesh, ("data",), features="mlp", kept="all")
    >>> with gdt.default_mesh(mesh):
    ...     model = plan.apply(gdt.nn.Sequential(gdt.nn.Dense(8, 16), gdt.nn.Dense(16, 4)))
    >>> plan.scheme, model[0].weight.layout.sharding_specs
    ('FSDP, features by mlp', ['data', 'model'])
    """

    mesh: Mesh
    batch_axes: tuple[str, ...] = ()
    features: str = ""
    kept: str = ""
    sequence: bool = False
    checkpoint: bool = False
    micro_batches: int = 1
    experts: bool = False
    prediction: Prediction | None = field(default=None, compare=False, repr=False)
    notes: Notes | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        known = {"features": ("", *WAYS), "kept": tuple(STATES)}
        for name, values in known.items():
            if (value := getattr(self, name)) not in values:
                remedy = f"It is one of {', '.join(map(repr, values))}."
                raise error(ArgumentError, "ParallelPlan", f"{name} is {value!r}", remedy=remedy)
        if not isinstance(self.batch_axes, tuple) or {*self.batch_axes} - {*self.mesh.axis_names}:
            remedy = f"It is a tuple of mesh axes, of {', '.join(map(repr, self.mesh.axis_names))}."
            problem = f"batch_axes is {self.batch_axes!r}"
            raise error(ArgumentError, "ParallelPlan", problem, remedy=remedy)
        if self.micro_batches < 1:
            problem = f"micro_batches is {self.micro_batches}"
            raise error(
                ArgumentError, "ParallelPlan", problem, remedy="It is 1 for all rows at once."
            )

    @property
    def stages(self) -> int:
        """The number of stages of a pipeline; 1 for none."""
        return self.count("stage")

    @property
    def scheme(self) -> str:
        """The scheme in a few words: what is split."""
        if self.mesh.size == 1:
            return "one device"
        parts = [STATES[self.kept]] if self.batch_axes else []
        if self.features:
            parts.append(f"{'sequence and ' * self.sequence}features by {self.features}")
        if self.experts:
            parts.append("experts")
        if self.stages > 1:
            parts.append("pipeline")
        return ", ".join(parts) or "replicated"

    def count(self, *axes: str) -> int:
        """Return the number of devices along mesh axes; 1 along axes that the mesh has not.

        >>> gdt.prediction.ParallelPlan(gdt.create_mesh([("data", 4)])).count("data", "model")
        4
        """
        sizes = dict(zip(self.mesh.axis_names, self.mesh.sizes, strict=True))
        product = 1
        for axis in axes:
            product *= sizes.get(axis, 1)
        return product

    @checked
    def on(self, mesh: Mesh) -> ParallelPlan:
        """Return the plan on another mesh, of devices that are there, or of other sizes.

        Raises MeshError for a mesh of other axes.

        >>> mesh = gdt.create_mesh([("data", 64)], device_type="abstract")
        >>> plan = gdt.prediction.ParallelPlan(mesh, ("data",))
        >>> plan.on(gdt.create_mesh([("data", 4)])).mesh.size
        4
        """
        if mesh.axis_names != self.mesh.axis_names:
            axes = " and ".join(map(repr, self.mesh.axis_names))
            problem = f"the axes of the plan are {axes}, and those of the mesh {mesh.axis_names}"
            raise error(MeshError, problem, operands={"plan": self.mesh, "mesh": mesh})
        return replace(self, mesh=mesh, prediction=None, notes=None)

    @checked
    def batch_layout(self, ndim: int) -> Layout:
        """Return the layout of an array of `ndim` axes, 1 or more, whose first ones are the rows of
        a batch. Raises ArgumentError for no axes.

        >>> gdt.prediction.ParallelPlan(gdt.create_mesh([("data", 4)]), ("data",)).batch_layout(2)
        Layout(['data', -], Mesh(data=4))
        """
        if ndim < 1:
            raise error(ArgumentError, f"ndim is {ndim}", remedy="Rows are along the first axis.")
        return Layout([self.batch_axes or None, *[None] * (ndim - 1)], self.mesh)

    # ---- the model

    @checked
    def apply(self, model: Module) -> Module:
        """Move the arrays of a model to their layouts, and let its blocks run again in the backward
        pass if the plan says so; return the model.

        Blocks are the modules in the outermost lists of the model whose arrays are all trained;
        each becomes a `gdt.checkpointed` one. Raises MeshError for a model on a mesh of other axes.

        >>> mesh = gdt.create_mesh([("data", 4)])
        >>> plan = gdt.prediction.ParallelPlan(mesh, ("data",), kept="state")
        >>> with gdt.default_mesh(plan.mesh):
        ...     model = plan.apply(gdt.nn.Dense(8, 16))
        >>> gdt.optim.Adam(1e-3).init(model).state["m"]["weight"].layout.sharding_specs
        ['data', 'unsharded']
        """
        if self.notes is not None:
            _note_model(self.notes, model)
        self.layouts(model).apply(model)
        for place in [*_blocks(model)] if self.checkpoint else ():
            place.owner[place.key] = checkpointed(place.value)
        return model

    @checked
    def layouts(self, model: Module) -> LayoutMap:
        """Return the layouts of a model's arrays on the mesh of the model.

        >>> plan = gdt.prediction.ParallelPlan(gdt.create_mesh([("model", 2)]), features="shapes")
        >>> with gdt.default_mesh(plan.mesh):
        ...     model = gdt.nn.Sequential(gdt.nn.Dense(4, 8), gdt.nn.Dense(8, 4))
        >>> plan.layouts(model)["layers.1.weight"]
        Layout(['model', -], Mesh(model=2))
        """
        mesh = self.on(mesh_of_model(model)).mesh
        stage = "stage" if self.stages > 1 else None
        shapes = {name: x.shape for name, x in model.parameters().items()}
        expert = "data" if self.experts else None
        split = split_features(self.features, shapes, mesh, "model", self.sequence, stage, expert)
        layouts = LayoutMap(mesh, allow_unmatched=True)

        def kept_split(specs: Any = None) -> Any:
            axes = specs.sharding_specs if isinstance(specs, Layout) else specs or ()
            if "data" in axes:  # of experts: there is no copy along it
                return specs
            if self.kept == "all":
                return Sharded(kept="data", used=specs)
            return Sharded(state="data", used=specs) if self.kept else specs

        for pattern, specs in split.items():
            layouts[pattern] = specs if pattern.endswith(OUTPUT) else kept_split(specs)
        if self.kept:
            others = "".join(f"(?!{p})" for p in split if not p.endswith(OUTPUT))
            layouts[f"{others}.*"] = kept_split()
        return layouts

    @checked
    def sequential(self, blocks: Sequence[Module]) -> Module:
        """Return a module that calls blocks one after the other: a `gdt.nn.Pipelined` if the plan
        has stages, and else a `gdt.nn.Sequential`.

        blocks: modules of one structure; see `gdt.nn.Pipelined`. A `make_step` that asks for it
        gets plans with stages too.

        >>> plan = gdt.prediction.ParallelPlan(gdt.create_mesh([("stage", 2)]), micro_batches=4)
        >>> with gdt.default_mesh(plan.mesh):
        ...     blocks = [gdt.nn.Dense(4, 4, key=n) for n in range(2)]
        >>> plan.sequential(blocks).describe()
        '2 blocks over stage 2, 4 micro-batches'
        """
        if self.notes is not None:
            self.notes.blocks.append(len(blocks))
        if self.stages == 1:
            return Sequential(*blocks)
        if self.notes is not None:
            name = f"blocks {len(self.notes.blocks)}"
            each = self.notes.length(name, len(blocks) // self.stages)
            blocks = blocks[: each * self.stages]
        return Pipelined(blocks, "stage", self.micro_batches, checkpoint=self.checkpoint)

    # ---- the step

    @checked
    def value_and_grad(self, f: Callable[..., Any]) -> Callable[..., tuple[Any, Tree]]:
        """Return a function like `gdt.value_and_grad(f)` that computes with one micro-batch after
        the other: the means of the values and gradients of all.

        f: a function of a model, and of arrays or trees of arrays whose first axes are the rows of
            a batch, which returns a mean over rows. The micro-batch m consists of the rows m, m +
            micro_batches, ... A `make_step` that asks for it gets plans with micro-batches too.

        A pipeline divides the rows itself. Calls raise ShapeError for rows that `micro_batches`
        does not divide.

        >>> mesh = gdt.create_mesh([("data", 2)])
        >>> plan = gdt.prediction.ParallelPlan(mesh, ("data",), micro_batches=2)
        >>> with gdt.default_mesh(plan.mesh):
        ...     model, x = gdt.nn.Dense(1, 1, initializer="ones"), gdt.ones((4, 1))
        >>> value, gradients = plan.value_and_grad(lambda model, x: gdt.mean(model(x)))(model, x)
        >>> float(value), gradients["weight"].tolist()
        (1.0, [[1.0]])
        """

        def evaluated(model: Any, *batch: Tree) -> tuple[Any, Tree]:
            count = 1 if self.stages > 1 else self.micro_batches
            rows = [x.shape[0] for x in leaves(batch) if getattr(x, "ndim", 0)]
            length = count
            if self.notes is not None:
                self.notes.rows = rows[0] if rows else None
                length = self.notes.length(MICRO_BATCHES, count)
            if count == 1:
                return functional.value_and_grad(f)(model, *batch)
            if any(n % count for n in rows):
                problem = f"{count} micro-batches do not divide the rows of a batch"
                shapes = {f"array {n}": x.type for n, x in enumerate(leaves(batch))}
                raise error(ShapeError, "value_and_grad", problem, operands=shapes)
            columns = [*zip(*[_micro_batches(x, count) for x in leaves(batch)], strict=True)]
            differentiated, totals = functional.value_and_grad(f, resolve=False), None
            for column in columns[:length]:
                found = differentiated(model, *with_leaves(batch, column))
                totals = found if totals is None else _sum(totals, found)
                del found
            value, gradients = mapped(lambda x: x / count, totals)
            return value, gradients

        return evaluated


def _sum(tree: Tree, other: Tree) -> Tree:
    """Return the tree of the sums of leaves."""
    terms = leaves(other)
    return mapped(lambda x: x + next(terms), tree)


def _micro_batches(x: Any, count: int) -> Sequence[Any]:
    """Return the micro-batches of an array, whose rows stay on their devices."""
    parted = reshape(x, (x.shape[0] // count, count, *x.shape[1:]))
    return slices(parted, axis=1)


def _lists(model: Module) -> Iterator[list[Place]]:
    """Yield the places of the modules in each of the outermost lists of a model."""
    lists: dict[int, list[Place]] = {}
    for place in places(model):
        around = place.name.split(".")[:-1]
        if isinstance(place.owner, list) and not any(part.isdigit() for part in around):
            lists.setdefault(id(place.owner), []).append(place)
    yield from lists.values()


def _blocks(model: Module) -> Iterator[Place]:
    """Yield the places of the modules that can be run again, of which a tape then keeps less."""
    for place in itertools.chain(*_lists(model)):
        block = place.value
        if not isinstance(block, Module) or awaits_arrays(block):
            continue
        if block.state().keys() == block.parameters().keys() != set():
            yield place


def _note_model(notes: Notes, model: Module) -> None:
    """Note the parameters of a model, and leave of blocks that are alike a few."""
    if model in notes.models:
        problem = "make_step has applied a plan to a model to which one was applied before"
        raise error(ArgumentError, "plan", problem, remedy="Make a model in each call.")
    notes.models.add(model)
    parameters = model.parameters()
    notes.shapes = {name: x.shape for name, x in parameters.items()}
    notes.itemsizes = {name: x.dtype.itemsize for name, x in parameters.items()}
    for name, m in model.modules():
        if isinstance(m, MoE):
            notes.experts += [f"{name}.{x}".lstrip(".") for x in EXPERTS if hasattr(m, x)]
    notes.experts = [name for name in notes.experts if name in notes.shapes]
    notes.can_checkpoint = bool(notes.blocks) or any(True for _ in _blocks(model))
    notes.has_convolutions = any(isinstance(m, Convolution) for _, m in model.modules())
    for number, block_places in enumerate(_lists(model)):
        blocks, kept = block_places[0].owner, []
        runs = itertools.groupby(blocks, lambda b: [*structure(b)] if isinstance(b, Module) else b)
        for k, (_, run) in enumerate(runs):
            alike = [*run]
            kept += alike[: notes.length(f"list {number}, run {k}", len(alike))]
        blocks[:] = kept
