"""The supervisor's side: rank servers, hangs, the oracle's judgement, results on disk.

For others: `cache`, `campaigns`, `devices`, `differences`, `driver`, `durations`, `engines`, `executed`, `folders`,
`gpus`, `life`, `nodes`, `oracle`, `pool`, `progress`, `results`, `runner`, `schedule`, `scratch`, `sendable`, `shards`,
`storage`, `supervisor`, `workers`.
"""
