"""Questions about releases: is-safe, bisect, reproduce, timeline.

For others: `bisect`, `changes`, `is_safe`, `is_safe_view`, `recorded`, `reproduce`, `scope`, `search`,
`timeline`.
"""
