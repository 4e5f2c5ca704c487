"""The verbs of those who keep the catalogue true.

For others: `advisories`, `bench`, `bumps`, `command`, `machine`, `models`, `overview`, `record`, `reliability`,
`reports`, `rediscover`, `scaling`, `score`, `screenshots`, `soak`, `trust`.
"""
