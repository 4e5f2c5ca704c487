"""A run shown to people and to CI.

For others: `claims`, `failure`, `junit`, `listing`, `page`, `remedies`, `run`, `terminal`.
"""
