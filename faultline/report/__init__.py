"""A run shown to people and to CI.

For others: `claims`, `junit`, `listing`, `page`, `remedies`, `run`, `terminal`.
"""
