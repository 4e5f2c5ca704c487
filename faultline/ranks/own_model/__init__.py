"""Somebody's own model in a rank, for `check`."""
