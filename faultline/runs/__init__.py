"""The supervisor's side: rank servers, hangs, the oracle's judgement, results on disk.

For others: `cache`, `campaigns`, `rank_reports`, `driver`, `engines`, `estimates`, `executed`, `gpus`, `measurement`,
`nodes`, `oracle`, `progress`, `results`, `runner`, `scratch`, `sendable`, `storage`, `supervisor`.
"""
