"""Observers of moves, collectives and NaN; tables and drawings; the configuration of a machine.

`count_collectives`, `explain`, `no_moves`, `check_nans` and `sync_debug_mode` are observers
(`gdt.observe`): the engine tells them what runs, and they change nothing. Their results do not
depend on how the coordinates of a mesh are stored, since bytes are those that separate devices
send. `visualize` draws which device holds which part of an array, and `show_config` lists the
devices and libraries of this machine. `html` and `pictures` show all of it in notebooks.
"""
