"""The version of Faultline, read from here when a package is built."""

__version__ = "0.1.0"
