"""Recorded steps as CUDA graphs, with calls of NCCL between them.

Where all arrays of a recorded step are on the same GPUs of a process, its program is captured
after it has run once. What it computes between two collectives becomes one graph on each GPU, so on
one GPU a call of the step is one launch. A graph holds addresses, which has consequences:

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
- NCCL's calls are not captured: it may wait for ever in graphs that one thread launches on several
  GPUs, and wants all ranks to capture a call or none. A graph ends before them, and the next begins
  after them. Each launch issues them again with the addresses of the capture, on the communication
  streams, with the events of an eager step (`gdt.comm.ranks`). What is packed for them and made of
  them is captured.
- What runs beside computation until its `join` (buckets of gradients, weights that are gathered
  ahead) is a graph on a stream of its own, which is launched on the communication stream. The pool
  keeps the memory of streams apart, so what one frees no other gets.
- Collectives in which the host waits for data, which tell it what to send (`gdt.comm.vectors`), run
  as plans between two captures (`pieces`). What the next graph reads of their results is copied
  into buffers; what they read stays allocated.
- Several processes compare what they note (`gdt.comm.agreement`), and one may launch graphs where
  another runs plans or the step as it is written. Graphs note nothing, nor does their capture, so
  with each launch the notes are made that plans would have made, in their order, with the numbers
  that the host has computed, and with the makers of what collectives combine (`program_notes`).
  Where that cannot be (`can_note`) there are no graphs.
- All is captured before the first launch, on each GPU at the same time and in one pool: what cannot
  be captured has changed nothing.

The same functions run as in an eager step, with the same choice of kernels, so results are the same
bits; `gdt.matmul_backend` and `gdt.matmul_precision` are part of a call's signature. What CUDA or
CuPy refuses to capture (waiting for the GPU, cuBLAS, sorting) is a FunctionError that names the op
and the user's line; nothing is changed then. Where a step's arrays are on different sets of GPUs,
the program is replayed plan by plan, as on the CPU.
`tests/strict/capture.py` simulates stream capture on several devices at once.
"""
