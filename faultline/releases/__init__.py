"""Questions about releases: is-safe, bisect, reproduce, timeline.

For others: `bisect`, `bisection`, `changes`, `is_safe`, `is_safe_view`, `recorded`, `reproduce`, `sampling`,
`timeline`.
"""
