"""What puts Faultline itself to the test, and measures it.

For others: `bench`, `models`, `reliability`, `soak`, `trust`, `upgrades`.
"""
