"""From somebody's own model to the cells in which it breaks.

For others: `cell`, `command`, `findings`, `known`, `script`, `target`.
"""
