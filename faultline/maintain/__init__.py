"""The verbs of those who keep the catalogue true.

For others: `bless`, `command`, `machine`, `readmes`, `record`, `reports`, `score`.
"""
