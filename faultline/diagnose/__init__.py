"""From a log to the failure that it shows: `command.run` is the verb, `diagnosis.diagnose` the answer.

For others: `command`, `context`, `diagnosis`, `events`, `lines`, `messages`, `prose`, `signs`, `silent`,
`unnamed_view`.
"""
