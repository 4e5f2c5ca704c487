"""What puts Faultline itself to the test, and measures it.

For others: `bench`, `bumps`, `models`, `reliability`, `soak`, `trust`.
"""
