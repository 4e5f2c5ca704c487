"""What was measured before: committed outcomes, errors, months and versions; it starts nothing.

For others: `history`, `matching`, `measured`, `nearest`, `ranges`, `recording`, `releases`, `remedies`, `several`,
`store`, `symptoms`, `timeline`, `verdicts`, `wording`.
"""
