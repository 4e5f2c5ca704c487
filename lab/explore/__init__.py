"""From random programs to what no catalogue has: drawn, run, shrunk, compared and kept.

For others: `command`, `overview`, `publishing`, `replay`.
"""
