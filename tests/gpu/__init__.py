"""One command for a machine that has a GPU and nothing else: `make gpu PYTHON=python3`.

    python3 -m tests.gpu.run                    every stage
    python3 -m tests.gpu.run setup kernels      these

Such a machine has no network, no git and no MPI, but a Python with CuPy, pytest and perhaps PyTorch
and JAX. What it lacks is brought in a folder that `make gpu-bundle` fills elsewhere (`bundle`). The
stages (`stages`) are processes with a limit each; what they print, and JSON of what they measure,
goes to the folder that OUT names. A stage that fails or does not end costs no other its result.
"""
