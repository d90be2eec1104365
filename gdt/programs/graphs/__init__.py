"""Recorded steps as CUDA graphs: a graph for each part of a program that only computes.

Where all arrays of a recorded step are on the same GPUs of a process, its program is captured
after it has run once. `pieces` cuts it into collectives and what computes between them. Every
segment becomes one graph on each GPU, so on one GPU a call of the step is one launch. A graph holds
addresses, which has consequences:

- Arrays that the step replaces (parameters, an optimizer's state, moving averages) get buffers that
  the graph reads and overwrites; their owners then hold views of these. Other arrays that stay the
  same are read where they are, and arguments are copied into buffers before the launch. What a step
  returns is copied out of the graph's memory, which is a pool of its own.
- What the host computes anew is computed first, in the program's order, and sent to buffers: the
  floats of a step in one copy, already in the dtype of the update that reads them. No number of a
  step is part of the graph.
- Updates of all parameters are one launch, though the program has one update for each.
- What a kernel reads that depends on addresses (the table of an optimizer's update) is built during
  the capture and sent after it.
- A buffer of which the user still holds an array (`before = model.weight`) is never overwritten:
  that call runs the program without the graphs, and the next one captures them with another
  buffer.
- Collectives are not captured, since NCCL may wait for ever in graphs that one thread launches on
  several GPUs. They run between the launches through the transport, on the communication streams;
  what the next graph reads of their results is copied into its buffers. What they read stays
  allocated as long as the graphs. Buckets of gradients that are sent early
  (`gdt.autodiff.buckets`) run beside the graphs that follow, until their `join`. An op that merges
  statistics of all devices (`moments`) is a collective as a whole.
- A segment is captured however small it is: otherwise its results would have to be copied for the
  next graph. Only the end of a step that ends with a collective has no graph.
- Several processes compare what they note (`gdt.comm.agreement`), and one may launch graphs where
  another runs plans or the step as it is written. Graphs note nothing, nor does their capture, so
  before each collective and at the end the notes are made that plans would have made by then, in
  their order, with the numbers that the host has computed (`program_notes`). Collectives note
  themselves, and name who has made what they combine: a graph's buffer has the name that a plan's
  result has. Where that cannot be (`can_note`) there are no graphs.
- All segments are captured before the first is launched, in one capture on each GPU at the same
  time and in one pool: a segment that cannot be captured has changed nothing.

The same functions run as in an eager step, with the same choice of kernels, so results are the same
bits; `gdt.matmul_backend` and `gdt.matmul_precision` are part of a call's signature. What CUDA or
CuPy refuses to capture (waiting for the GPU, cuBLAS, sorting) is a FunctionError that names the op
and the user's line; nothing is changed then. Where a step's arrays are on different sets of GPUs,
the program is replayed plan by plan, as on the CPU.
`tests/strict/capture.py` simulates stream capture on several devices at once.
"""
