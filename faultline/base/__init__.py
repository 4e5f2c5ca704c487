"""Words, paths and small helpers that everybody uses; standard library alone, but for the console and memory.

For others: `console`, `content`, `errors`, `interpreters`, `machine`, `markdown`, `near`, `packages`, `paths`, `text`,
`traces`, `version`.
"""
