"""The static site: an entrance with a search by error text, a page for each failure and each stack, and the docs."""
