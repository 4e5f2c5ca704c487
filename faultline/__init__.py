"""Run the catalogue of distributed fine-tuning failures."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from faultline.api import audit as audit
    from faultline.api import check as check
    from faultline.api import diagnose as diagnose
    from faultline.audit.command import AuditResult as AuditResult
    from faultline.base.errors import FaultlineError as FaultlineError
    from faultline.base.errors import TargetFailed as TargetFailed
    from faultline.base.errors import Unavailable as Unavailable
    from faultline.base.errors import UsageError as UsageError
    from faultline.base.version import __version__ as __version__
    from faultline.check.command import CheckResult as CheckResult
    from faultline.diagnose.command import DiagnoseResult as DiagnoseResult

_PUBLIC = {
    **dict.fromkeys(("audit", "check", "diagnose"), "api"),
    "AuditResult": "audit.command",
    "CheckResult": "check.command",
    "DiagnoseResult": "diagnose.command",
    **dict.fromkeys(("FaultlineError", "TargetFailed", "Unavailable", "UsageError"), "base.errors"),
    "__version__": "base.version",
}
"""Where each public name is."""


class _Package(ModuleType):
    """Imports what is public when it is first used.

    A function keeps its name when the room of that name is imported, which Python would put in its place.
    """

    def __getattr__(self, name: str) -> object:
        if name not in _PUBLIC:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        from importlib import import_module

        return getattr(import_module(f"{self.__name__}.{_PUBLIC[name]}"), name)

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __dir__(self) -> list[str]:
        return sorted(_PUBLIC)


sys.modules[__name__].__class__ = _Package
