"""The papers' mechanisms in plain torch, to read next to the paper; the tests compare the fast code with them.

Every function takes one head of one sequence without padding, and no file here imports anything from ``lra``.
"""
