"""The catalogue: what each folder in repros/ says of its failure, read without importing torch."""

from faultline.base.paths import REPROS, ROOT
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
from faultline.catalogue.history import Change, History, Reported
from faultline.catalogue.loading import failures, load_module, needs, settings
from faultline.catalogue.recognition import Condition, Mechanism, Project, Recognition
from faultline.catalogue.records import KINDS, REMEDIES, Claim, Failure, Variant

__all__ = [
    "EVERY_MODE",
    "KINDS",
    "REMEDIES",
    "REPROS",
    "ROOT",
    "TRIED_HERE",
    "Change",
    "Claim",
    "Condition",
    "Failure",
    "History",
    "Mechanism",
    "Project",
    "Recognition",
    "Reported",
    "Variant",
    "changes",
    "detects",
    "fails",
    "failures",
    "helps",
    "load_module",
    "needs",
    "present",
    "settings",
    "shows",
    "trains",
    "variants",
]
