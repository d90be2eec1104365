"""CUDA without arrays: the driver, NVRTC, compiled kernels with checked arguments, tensor maps, and
how each kernel of `kernels/` is launched.

Nothing in this package needs a GPU but `CudaRunner.run` and what `CudaRunner.prepare` returns.
`driver` asks the NVIDIA driver what GPUs there are; `sources` reads the kernels' signatures from
`kernels/`; `compiler` compiles them by `nvrtc` and stores the compiled code on disk; `launches`
computes grids, blocks and arguments from arrays; `runner` checks the arguments of a launch, and
fills in those of one that is repeated; `tensor_map` describes arrays to Hopper's tensor memory
accelerator. `cudnn` runs convolutions by NVIDIA's library, where it is installed.

**Kernels take the place of bodies.** On a backend with a kernel runner an op that declares a kernel
runs it instead of its body. The kernel's function builds calls through `gdt.cuda.launches`, and a
KernelError refuses what no kernel takes: a dtype, a size, an architecture, a layout of memory. Then
the body runs. The plan's first run decides between the two; `gdt.explain` has a column that names
the kernels, or the body and the reason. Between gdt's matrix product and cuBLAS
`gdt.matmul_backend` chooses, and `gdt.matmul_precision` says whether float32 may be rounded to
tf32. The tests register a kind of device, `emu:0`, whose runner executes the kernels on the host:
both example models train there with kernels alone, to the values of NumPy.

**Flags instead of waiting.** Bad data that a kernel meets (a label that is no class) sets a flag on
the device (`gdt.backend.flags`), and the error is raised at the next read by the host, since a
question after every launch would make the host wait. Updates of all parameters are one launch.

**Epilogues.** A product's bias, ReLU and the gradient of it are launched in recorded steps, in the
place of the ops that follow a product (`gdt.programs.epilogues`). Loss and gradient in one pass
over the logits are tested like the rest, but no op launches them.
"""
