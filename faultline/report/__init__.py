"""A run shown to people and to CI.

For others: `claims`, `failure`, `junit`, `listing`, `on_gpus`, `page`, `remedies`, `run`, `terminal`.
"""
