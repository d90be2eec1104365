"""Array programs as people write them, each written once for every library that runs it.

`arrays` holds programs of arrays, `gradients` functions whose value and gradient are asked for;
`program` says what a program is, and what it computes in float64. `contenders` runs them in NumPy
and gdt, `bench.peers` in other libraries, each as a process of its own (`worker`). `__main__`
lets the processes take turns and prints the tables.
"""
