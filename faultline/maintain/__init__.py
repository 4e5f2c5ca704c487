"""The verbs of those who keep the catalogue true.

For others: `bless`, `command`, `machine`, `overview`, `record`, `reports`, `score`.
"""
