"""Run the call of an op: the op's declaration, the plan of a call, and the functions of blocks that
a plan is made of.

**Declaration and plan.** An op declares its rule, body, gradient and kernel in one block of code
(`declaration`, `op`). The first call with operands of new types makes a plan (`plan`): where each
operand moves, what runs on each block, and the types of the outputs. Every later call with these
types is one dictionary lookup, the body, and one new array.

**The life of a plan.** What a plan runs is its phase, an object with a method `run` from the blocks
of the operands, which have moved, to the blocks of the outputs:

    Op._call: the types of the operands and the statics are the key of a plan
       |                                                          found: |
       | not found                                                       v
       v                                        plan.only, on one block with one output, where
    Op.plan: the rule, and the strategy         nothing is sent: plan.fast(*blocks), one new array
       |                                                          else: Op.run_plan
       v                                                                 |
    Unrun --- the first run checks the shapes that                       |
       |      the rule promises, and learns the dtypes                   |
       |                                                                 v
       +--> OneBlock     plan.fast, if nobody watches what moves; else move the operands, phase.run
       +--> ManyBlocks   move the operands, phase.run: the second run compiles one function
       +--> Update       donated operands: phase.update on one block, else phase.run

    Rounded   in the place of these, for bfloat16: casts, and the phase of a plan for float32
    Planned   in the place of these, for ops without a rule

`first_run` has Unrun; `one_block`, `many_blocks`, `donated`, `rounded` and `planned` have the
others. A body is one of these: the function that the op declares, what it chooses in its place once
shapes are known (`loops.ChosenBody`), its kernel (`launcher.KernelBody`, whose launches are
recorded and repeated: `prepared`), or any of them in several threads (`threads`).

**Views.** An op that `Op.shows` has made returns views, as NumPy's functions do: `_call` enters its
result as a view of the operand (`gdt.array.views`), by the step that the plan remembers.

**Ops without a rule.** An op that moves blocks, or makes them of nothing (relayout, slicing, random
numbers), declares a planner instead, which makes the plan from the types of the operands
(`planned`). A function of ops that is one entry on the tape, with a gradient of its own, is a
`custom_vjp`.

**Padding.** Where a factor is reduced, the plan overwrites padding with the identity of the
reduction first (0 in both operands of a contraction, since 0 * inf is NaN), or the body asks for
`shards`, which says where each shard begins and how many of its elements are valid.

**Reductions that are no sums** (moments, log-sum-exp, arg-reductions): the body returns statistics;
the op's `merge` combines those of all coordinates by sums and maxima, each of them an all-reduce
(`merging`).

**One block.** With one block nothing is sent. `one_block` decides at plan time all that shapes
decide. A factor that every output lacks need not stay split inside a block: its mesh axes and its
dim are one dim, a view of a large block, so moments over a split batch are one pass and no merge.
The collectives that separate devices would need are still reported, with their bytes.

**Generated source.** What surrounds a body (reshapes of operands, moves, recycled memory, `finish`)
becomes one Python expression and is compiled (`source`): on small blocks a frame of Python costs as
much as a third of the op. A program of recorded plans writes these expressions into its own lines,
so `print(step.programs[0].source)` shows the calls of the bodies themselves.

**Threads.** Large blocks are cut between threads of the host where every element is computed as by
one (`threads`). Products of matrices have those of BLAS, but for small ones, which one thread
computes: on a busy machine the threads of BLAS wait for each other a hundred times longer than the
product takes (`blas`).

**Specialized bodies and compiled loops.** On small blocks a body's questions (which axes, which
shape, whether memory is in order) cost as much as its arithmetic. So an op may declare what takes
its body's place on the host once the shapes are known (`Op.specialize`): products of matrices
become one function, sums over a batch a product with ones. Where numba is installed (the extra
`fast`), the ops that small blocks spend most of a dense network's step in run as one compiled loop
(`loops`; the ops' `loops.py`) instead of a call, a temporary and a pass for every operation; loops
of updates and of an LSTM's step are made of formulas (`gdt.fusion.formula_loop`). Numba's take
float32 and float64, vectors that are one for each channel, rows that are not too short, and few
exponentials. They do the body's arithmetic in its order, except for
sums, which they add up in float64 (long sums of float64 are left to NumPy's pairwise sums), and for
exponentials and logarithms, which are the C library's. They give no NumPy warnings, whatever
`np.errstate` says. numba compiles a loop when it first runs, in 0.2 to 1 s (6 s for all of them),
and caches it beside gdt or in the user's cache (`NUMBA_CACHE_DIR`); importing numba, which takes
half a second, waits for the first block that has a loop. `gdt.show_config()` says what is
installed; `GDT_COMPILED_LOOPS=0` turns loops off.

**Updates.** An op may name donated operands, as an optimizer's update does. `updates` overwrites a
block only if the place that holds the array holds the only reference to the array, to its tuple of
blocks, to the block and to the block's memory (`ownership`). A view, a tape, `.numpy()`, `.shards`
or a second name all count as references; then the result gets memory of its own. On a GPU one
launch updates all parameters, and is repeated without the op's function (`update_launches`).

**Kernels.** On a backend with a kernel runner an op that declares a kernel runs it instead of its
body (`launcher`); see `gdt.cuda`.
"""
