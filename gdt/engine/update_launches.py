"""Updates of many parameters by one launch of an op's kernel for each block and dtype.

Such a kernel reads the addresses of all arrays from `table`, (parameters, columns), which its
function has the launcher keep by this name, on the host and on the device; and its numbers from
`scalars`. On one block a launch is repeated without that function: addresses are filled into the
table, which is sent if one has changed, and so are the scalars.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from gdt.array.array import DistributedArray
from gdt.backend import backend_of
from gdt.backend.graphs import CAPTURED
from gdt.backend.numpy import ONE_REFERENCE
from gdt.cuda.runner import ArgumentPlace, KernelCall
from gdt.cuda.sources import parameters
from gdt.engine.launcher import Launcher
from gdt.engine.ownership import count, has_own_block, is_owned
from gdt.engine.plan import Block, Plan
from gdt.engine.prepared import RECORDING, KernelRecording

Rows = list[list[int]]  # for each parameter the addresses of it, of its state and of its gradient


class UpdateLaunch:
    """The updates of all parameters of some types by the op's kernel."""

    def __init__(
        self, kernel: Callable[..., None], plans: Sequence[Plan], static: Mapping[str, Any]
    ) -> None:
        self.kernel, self.plans, self.static = kernel, plans, static
        self.bodies, self.mesh = plans[0].phase.kernel_bodies, plans[0].outs[0].mesh
        self.repeated: RepeatedUpdate | None = None

    def __call__(self, owners: Any, others: Any, args: Any) -> bool:
        """Update all; return False if the kernel does not apply."""
        repeated = self.repeated
        if repeated is None or CAPTURED.get() is not None:
            return self._launched(owners, others, args)
        rows = repeated.addresses(owners, others)
        if rows is None:
            return self._launched(owners, others, args)
        with backend_of(self.mesh).on(self.mesh, 0):
            repeated.launch(rows, args)
        for group, plan in zip(owners, self.plans, strict=True):
            for (mapping, name), array_type in zip(group, plan.outs, strict=True):
                # A new object, since what is known of the old one is outdated.
                mapping[name] = DistributedArray(array_type, (mapping[name].blocks[0],))
        return True

    def _launched(self, owners: Any, others: Any, args: Any) -> bool:
        """Update all by the kernel's function."""
        bodies = [body for plan in self.plans for body in plan.phase.kernel_bodies]
        if not all(body.applies for body in bodies):
            return False
        owned = [[is_owned(mapping, name) for mapping, name in group] for group in owners]
        arrays = [
            (*[mapping[name].blocks for mapping, name in group], other.blocks)
            for group, other in zip(owners, others, strict=True)
        ]
        backend, results = backend_of(self.mesh), []
        recording = KernelRecording(backend, (), 0)
        for i, body in enumerate(self.bodies):
            token = RECORDING.set(recording)
            try:
                with backend.on(self.mesh, i):
                    results.append(
                        body.multi_tensor(
                            self.kernel,
                            [tuple([blocks[i] for blocks in xs]) for xs in arrays],
                            [a.blocks[i] if type(a) is DistributedArray else a for a in args],
                            [[mine[i] for mine in own] for own in owned],
                            self.static,
                        )
                    )
            finally:
                RECORDING.reset(token)
        is_on_one_block = len(self.bodies) == 1 and CAPTURED.get() is None
        if is_on_one_block and all(all(mine) for own in owned for mine in own):
            blocks = [[xs[0] for xs in group] for group in arrays]
            launcher = self.bodies[0].launcher
            known = repeated_update(launcher, recording.calls, blocks, args)
            self.repeated = known or self.repeated
        for n, (group, plan) in enumerate(zip(owners, self.plans, strict=True)):
            for d, ((mapping, name), array_type) in enumerate(zip(group, plan.outs, strict=True)):
                made = tuple([blocks_of_tensors[n][d] for blocks_of_tensors in results])
                mapping[name] = DistributedArray(array_type, made)
        return True


class RepeatedUpdate:
    """A launch that updates other arrays in place, of which the blocks lie alike.

    blocks: for each parameter those of it, of its state and of its gradient.
    """

    def __init__(
        self, launcher: Launcher, call: KernelCall, blocks: Sequence[Sequence[Block]]
    ) -> None:
        find, self._backend = launcher.runner.address, launcher.backend
        self._find, self._strides = find, [[x.strides for x in xs] for xs in blocks]
        table, on_device = launcher.kept["table"]
        rows = [[find(x) for x in xs] for xs in blocks]
        own = np.array(rows, np.uint64)  # (parameters, arrays)
        pairs = np.argwhere((table[:, :, None] == own[:, None]).all(0))
        self._columns, self._sources = pairs.T  # column by column which array it has
        self._known = rows, table, on_device
        names = [parameter.name for parameter in parameters(call.instance)]
        places = [names.index("table"), names.index("scalars")]
        self._dtype = call.arguments[places[1]].dtype
        self._launch = launcher.runner.prepare(
            replace(call, pointees=()), [ArgumentPlace(n, i, 0) for i, n in enumerate(places)]
        )

    def addresses(self, owners: Any, others: Any) -> Rows | None:
        """Return the addresses of all blocks; None if one lies otherwise, or something else refers
        to one that would be overwritten."""
        rows, find = [], self._find
        for group, other, strides in zip(owners, others, self._strides, strict=True):
            row = []
            for (mapping, name), steps in zip(group, strides, strict=False):
                if count(mapping[name]) != ONE_REFERENCE or not has_own_block(mapping[name], 0):
                    return None
                block = mapping[name].blocks[0]
                if block.strides != steps:
                    return None
                row.append(find(block))
            block = other.blocks[0]
            if block.strides != strides[-1]:
                return None
            row.append(find(block))
            rows.append(row)
        return rows

    def launch(self, rows: Rows, scalars: Sequence[float]) -> None:
        """Launch on the blocks at these addresses, with these scalars."""
        known, table, on_device = self._known
        if rows != known:
            table = table.copy()
            table[:, self._columns] = np.array(rows, np.uint64)[:, self._sources]
            on_device = self._backend.upload(table)
            self._known = rows, table, on_device
        arrays = [on_device, self._backend.upload(np.array(scalars, self._dtype))]
        self._launch(arrays, [self._find(x) for x in arrays])


def repeated_update(
    launcher: Launcher,
    calls: Sequence[KernelCall],
    blocks: Sequence[Sequence[Block]],
    scalars: Sequence[Any],
) -> RepeatedUpdate | None:
    """Return the launch of an update in place as it can be repeated; None of several launches, of
    arrays that are copied first, of tensors without elements, and of scalars on the device."""
    is_plain = all(x.flags.c_contiguous and x.size for xs in blocks for x in xs)
    if len(calls) != 1 or not is_plain or not {float, int}.issuperset(map(type, scalars)):
        return None
    return RepeatedUpdate(launcher, calls[0], blocks)
