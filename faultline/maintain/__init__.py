"""The verbs of those who keep the catalogue true.

For others: `advisories`, `bless`, `command`, `machine`, `overview`, `record`, `reports`, `score`.
"""
