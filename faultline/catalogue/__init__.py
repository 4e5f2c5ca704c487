"""The catalogue: the records of what each folder in repros/ says of its failure, and what authors write them with.

For others: `history`, `loading`, `outcomes`, `places`, `recognition`, `records`, `stories`, `tables`.
"""

from faultline.catalogue.authors import (
    EVERY_MODE,
    TRIED_HERE,
    changes,
    detects,
    fails,
    helps,
    present,
    shows,
    trains,
    variants,
)
from faultline.catalogue.history import Change, History
from faultline.catalogue.records import REMEDIES, Claim, Failure, Variant

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
