"""How a call of an op runs: what the op declares, the plan of a call, and the functions of blocks
that a plan is made of.
"""
