"""The result of a diagnosis, which prints as the command shows it."""

from dataclasses import dataclass

from rich.console import Console

from faultline.base.console import printed
from faultline.diagnose import data, view
from faultline.diagnose.details import Details
from faultline.diagnose.diagnosis import Diagnosis


@dataclass(frozen=True, repr=False)
class DiagnoseResult:
    """The failure that a log shows, or that it shows none which the catalogue has.

    `str` is the answer of `faultline diagnose`, as it is written to a file.

    - `diagnosis`: what was decided: its `match`, or the `several` that it may be, the `cause` in the log, what is known
      of the run (`hints`), ...
    - `details`: what recorded runs know of it: what helps, where it happens, how to repeat it
    """

    diagnosis: Diagnosis
    details: Details

    @property
    def answer(self) -> str:
        """``named``, ``one of several`` or ``not in the catalogue``."""
        return self.diagnosis.answer

    @property
    def failure(self) -> str:
        """The name of the failure; empty if none is named."""
        return self.diagnosis.named

    @property
    def sure(self) -> str:
        """``certain`` or ``likely``; empty if no failure is named."""
        return self.diagnosis.match.sure if self.diagnosis.match else ""

    def as_json(self) -> dict[str, object]:
        """What ``--json`` prints; docs/diagnose.md has the keys."""
        return data.as_json(self.diagnosis, self.details)

    def show(self, console: Console) -> None:
        view.show(console, self.diagnosis, self.details)

    def __str__(self) -> str:
        return printed(self.show)

    def __repr__(self) -> str:
        return f"DiagnoseResult({self.failure or self.answer!r}, sure={self.sure!r})"
