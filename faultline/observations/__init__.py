"""What was measured before: committed outcomes, errors, months and versions; it starts nothing.

For others: `ambiguity`, `answers`, `history`, `matching`, `measured`, `ranges`, `recording`, `remedies`, `store`,
`symptoms`, `wording`.
"""
