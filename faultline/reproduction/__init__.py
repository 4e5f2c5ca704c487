"""From somebody's report to runs on their versions: `command.run` is the verb.

For others: `command`.
"""
