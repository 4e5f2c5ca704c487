"""The verbs of those who keep the catalogue true.

For others: `advisories`, `bench`, `bump`, `bumps`, `command`, `machine`, `models`, `overview`, `record`,
`reliability`, `reports`, `rediscover`, `scaling`, `score`, `screenshots`, `soak`, `trust`.
"""
