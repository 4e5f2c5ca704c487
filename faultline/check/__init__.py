"""From somebody's own model to the cells in which it breaks.

For others: `command`, `result`, `series`, `target`.
"""
