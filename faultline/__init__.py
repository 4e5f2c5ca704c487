"""Run the catalogue of distributed fine-tuning failures."""
