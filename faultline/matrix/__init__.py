"""Runs the matrix and shows it: run, list, show, report.

For others: `command`.
"""
