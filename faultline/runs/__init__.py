"""The supervisor's side: rank servers, hangs, the oracle's judgement, results on disk.

For others: `campaigns`, `devices`, `durations`, `folders`, `kept`, `oracle`, `progress`, `results`, `runner`,
`shards`, `storage`, `supervisor`.
"""
