"""The files of somebody's project: read safely, and the versions that they ask for.

For others: `documents`, `files`, `installed`, `versions`.
"""
