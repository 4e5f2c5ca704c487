"""Engines for many machines, and what writes jobs for them: a Ray cluster's nodes, and Slurm's.

For others: `cluster`, `rays`, `slurm`.
"""
