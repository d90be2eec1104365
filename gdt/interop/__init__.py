"""Support for other libraries, beyond NumPy's protocols and the array API standard.

Most need nothing: scikit-learn and SciPy dispatch on the standard (`SCIPY_ARRAY_API=1`), xarray on
NumPy's protocols, opt_einsum on the names of functions. `import gdt.interop.einops` makes gdt's
arrays known to `einops.rearrange` and its like. `import gdt.interop.keras` has Keras 3 run on gdt.
"""
