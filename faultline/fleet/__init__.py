"""Engines for many machines: cells run on the nodes of a Ray cluster.

For others: `rays`.
"""
