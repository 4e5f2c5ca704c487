"""Words, paths and small helpers that everybody uses; standard library alone, but for the console and memory.

For others: `console`, `errors`, `machine`, `markdown`, `packages`, `paths`, `text`, `traces`, `version`.
"""
