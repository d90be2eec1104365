"""Where arrays live, as facts without data: devices, meshes, layouts, the types of arrays, the
rules by which ops run on shards, and the routes between layouts.

Meshes, layouts and array types are immutable and interned: two that are equal are one object, so
that comparing them is `is` and a tuple of them is a cheap key.
"""
