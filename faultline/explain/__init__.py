"""What a word of the output means, from the pages and records that define it.

For others: `command`, `vocabulary`.
"""
