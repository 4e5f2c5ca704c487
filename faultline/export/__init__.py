"""From a cell to one file that shows it alone, and to an upstream issue.

For others: `cell`, `command`, `emit`, `issue`, `prove`, `upstream`.
"""
