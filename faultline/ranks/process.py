"""What somebody's code may change of the process that it shares with this suite, whose own code fails by it later."""

import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import replace

from faultline.ranks.report import ErrorReport

LIMITS = ("NOFILE", "FSIZE", "AS", "DATA", "STACK", "NPROC", "CPU")


def settings() -> Mapping[str, object]:
    """The user, torch's defaults, and the limits of this process, by name."""
    torch = sys.modules["torch"]
    limits = {f"the limit {name}": resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0] for name in LIMITS}
    defaults = {"torch's default device": torch.get_default_device(), "torch's default type": torch.get_default_dtype()}
    return {"the user": os.getuid(), **defaults, **limits}


def blamed(error: ErrorReport, before: Mapping[str, object], of_user: bool) -> ErrorReport:
    """An error of this suite's code, as the model's where that has changed the process since; with somebody's own
    model, each error says so."""
    now = settings()
    changed = [f"{name} from {before[name]} to {now[name]}" for name in now if now[name] != before[name]]
    if not changed or not (error.fault or of_user):
        return error
    note = f" (the model's code set {', '.join(changed)})"
    last = replace(
        error.chain[-1], message=f"{error.chain[-1].message}{note}", text=f"{error.chain[-1].text.rstrip()}{note}\n"
    )
    return replace(error, fault="", message=last.message, chain=(*error.chain[:-1], last))
