"""The verbs of those who keep the catalogue true."""
