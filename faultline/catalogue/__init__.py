"""The catalogue: the records of what each folder in repros/ says of its failure, and what authors write them with.

For others: `history`, `loading`, `outcomes`, `recognition`, `records`, `stories`.
"""

from faultline.catalogue.history import Change, History
from faultline.catalogue.records import (
    EVERY_MODE,
    REMEDIES,
    TRIED_HERE,
    Claim,
    Failure,
    Variant,
    changes,
    detects,
    fails,
    helps,
    present,
    shows,
    trains,
    variants,
)

__all__ = [
    "EVERY_MODE",
    "REMEDIES",
    "TRIED_HERE",
    "Change",
    "Claim",
    "Failure",
    "History",
    "Variant",
    "changes",
    "detects",
    "fails",
    "helps",
    "present",
    "shows",
    "trains",
    "variants",
]
