"""A run shown to people and to CI.

For others: `claims`, `failure`, `junit`, `on_gpus`, `page`, `run`, `terminal`.
"""
