"""What runs in the interpreter of the stack under test: the server that forks, one rank, its comparison.

For others: `facts`, `job`, `observer`, `own_model`, `preload`, `report`, `run`, `start`.
"""
