"""What searches for failures and proves Faultline, from a clone: random programs, explorations, proofs."""
