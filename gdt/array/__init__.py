"""The distributed array: its blocks, operators and methods, NumPy's and DLPack's protocols, how
values are placed on a mesh, and how they come back to the host.
"""
