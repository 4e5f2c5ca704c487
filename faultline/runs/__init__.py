"""The supervisor's side: rank servers, hangs, the oracle's judgement, results on disk.

For others: `cache`, `campaigns`, `devices`, `durations`, `engines`, `executed`, `folders`, `gpus`, `life`, `oracle`,
`progress`, `results`, `runner`, `shards`, `storage`, `supervisor`.
"""
