"""Words, paths and small helpers that everybody uses; standard library alone, but for the console and memory.

For others: `axes`, `console`, `errors`, `interpreters`, `machine`, `markdown`, `packages`, `paths`, `text`,
`traces`, `version`.
"""
