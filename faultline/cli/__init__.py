"""Options to requests, results to exit codes.

For others: `app`, `options`.
"""
