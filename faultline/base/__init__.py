"""Words, paths and small helpers that everybody uses; standard library alone, but for the console.

For others: `console`, `errors`, `markdown`, `near`, `packages`, `paths`, `text`, `traces`, `version`.
"""
