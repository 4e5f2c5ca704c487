"""From a project's files to the failures whose conditions hold.

For others: `command`, `project`.
"""
