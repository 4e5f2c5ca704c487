"""The matrix: cells, their selection, what is expected of them, and what they say of a claim.

For others: `cell`, `claims`, `expected`, `finding`, `on_gpus`, `rules`, `selection`, `words`.
"""
