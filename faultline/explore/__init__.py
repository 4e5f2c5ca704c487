"""From random programs to what no catalogue has: drawn, run, shrunk, compared and kept.

For others: `command`, `publishing`, `replay`, `search`.
"""
