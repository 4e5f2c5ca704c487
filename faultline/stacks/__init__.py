"""What to install: names, dates and requirements, and the environments that uv makes of them.

For others: `environments`, `index`, `requests`.
"""
