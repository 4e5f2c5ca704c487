"""From a log to the failure that it shows: `command.run` is the verb, `diagnosis.diagnose` the answer.

For others: `alone`, `command`, `context`, `diagnosis`, `events`, `lines`, `prefixes`, `result`, `signs`,
`silent`, `view`.
"""
