"""Facts without data: where arrays live, and how ops may split them.

**Types.** `Mesh`, `Layout` and `ArrayType(shape, dtype, layout)` are immutable and interned: equal
ones are the same object. Comparing them is `is`, and the key of a call, the types of its operands,
costs about as much as a tuple.

**Blocks.** A coordinate of a mesh is one device of the program; a block is the memory of one
physical device, which hosts a box of coordinates. A block has one axis per mesh axis in front of
the shard's own axes: of the box's size where the array is split along that mesh axis, else of
size 1.

    float32[16, 8]  ['batch', -]        on Mesh(batch=4)           block (4, 4, 8)
    float32[16, 8]  [-, -]              on Mesh(batch=4)           block (1, 16, 8), stored once
    float32[16, 8]  ['batch', 'model']  on Mesh(batch=4, model=2)  block (4, 2, 4, 4)

So an op on eight virtual devices is one NumPy call in which the mesh axes ride along as batch axes.
The mesh alone says how many blocks there are.

**Partial reductions.** A layout also says what is partial: `partial={'batch': 'sum'}` is an array
whose value is the sum of what the devices along `batch` hold. A partial sum costs nothing to
create, passes through linear ops, and is resolved when a value is needed. Inside a block it is
always summed already; what is partial is the sum between coordinates along the mesh axis.

**Rules and strategies.** `rule` reads a rule such as `"... i k, k j -> ... i j"`, in which equal
names are one factor. For each mesh axis it lists what that axis may do: split a factor (an output
that lacks the factor becomes partial), let a partial sum pass through a linear operand, or hold
whole operands. `strategy.choose` compares the combinations over all mesh axes and takes the
strategy of the lowest price: the bytes that its moves send, and what its partial results will take.
An op is never split along a mesh axis along which no operand is split.
Every operand holds a factor with the same ordered mesh axes, so a contraction never pairs shards
of different order. `tests/sharding/test_rules.py` compares every op's rule with brute force over
all placements of its operands and outputs.

**Routes.** `routes.route` finds the transitions that bring an operand to the layout that its
strategy asks for, with the fewest bytes; `gdt.comm.relayout` carries them out.

**Uneven sizes.** A dim of n over p coordinates has shards of `ceil(n / p)`; the tail is padding.
Padding repeats the last valid element, so that element-wise functions warn only where the data
would; a shard of padding alone holds ones where a recut made it. `.shards`, counts and `.nbytes`
leave padding out; bytes on the wire include it, since it is sent. With several mesh axes on one
dim, the shards of the pair are not shards of the first axis: 9 over (2, 2) is cut 3|3|3|0, over its
first axis alone 5|4. `recut` moves the intervals between such boundaries, and slices,
concatenation, flip, roll and pad are recuts as well.

**Processes and devices.** `processes` holds the index and the number of the processes that run the
program, `devices` the names of devices. `grid` splits the coordinates of a mesh into equal blocks,
which the processes share equally, row-major.

A newcomer reads `mesh`, `layout`, `array_type`, `rule`, `strategy`, `routes`.
"""
