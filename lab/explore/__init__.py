"""From random programs to what no catalogue has: drawn, run, shrunk, compared and kept.

For others: `case`, `command`, `overview`, `publishing`, `replay`, `search`, `since`.
"""
