"""Words, paths and small helpers that everybody uses; standard library alone, but for the console and memory.

For others: `console`, `errors`, `interpreters`, `machine`, `markdown`, `packages`, `paths`, `text`,
`traces`, `version`.
"""
