"""Run the catalogue of distributed fine-tuning failures."""

__version__ = "0.1.0"
