"""All names of failures' code that export knows: what each is in a file that has neither its module nor its data."""

# In any module of ours: `build(make)` is what `make()` returns, `records("text")` is a constant with the rows of that
# fixture, and `with seeded():` goes: every rank sets a seed before it builds anything, and compares with itself alone.
BUILD = "build"
RECORDS = "records"
SEEDED = "seeded("

# In trainers: `from_trl("gkd", "GKDTrainer")` is an import, `changed_config(arguments, changes, setup)` a part of the
# file's own DeepSpeed config, and `as_launched(...)` reads that config from a file.
FROM_TRL = "from_trl"
CHANGED_CONFIG = "changed_config"
AS_LAUNCHED = "as_launched("
# Trainers that learn from given completions only, and so never sample.
NO_SAMPLING = r"""\b(SFT|DPO|KTO)Trainer\b|\(Trainer\)|["']lmbda["']: 0\.0"""
# The trainer's attribute that says how many blocks of completions it samples.
SAMPLE_BLOCKS = "sample_blocks"

# Functions with a simpler twin, by module: for scenarios that compare numbers, and for files that need not.
COMPARABLE = (("tiny_models.data", "text_rows", "uneven_rows"),)
SIMPLER = (
    ("tiny_models.data", "text_rows", "random_rows"),
    ("tiny_models.data", "sliced_image_batch", "random_slices"),
    ("faultline.scenario", "token_batch", "random_batch"),
)
