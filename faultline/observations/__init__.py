"""What was measured before: committed outcomes, errors, months and versions; it starts nothing."""
