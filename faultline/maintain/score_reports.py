"""How often `diagnose` is right on fixtures/reports: texts in people's words, with or without an error."""

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from faultline.base.markdown import headed, row
from faultline.base.paths import ROOT
from faultline.diagnose.command import DiagnoseRequest, answer

FOLDER = ROOT / "fixtures" / "reports"
KNOWN, NEW, BEYOND = "known", "new", "beyond"
NAMED, OR = " (named)", " or "


@dataclass(frozen=True)
class LabelledReport:
    """What truth.toml says of a report.

    - `kind`: ``known``, a failure of the catalogue; ``new``, another one that processes on a CPU can show; ``beyond``,
      what they can't show, or no failure of distributed training.
    - `failure`: of the catalogue, several with commas where the thread leaves it open.
    - `settled`: how the `thread` or a later fix settles it; `record` says that the thread is a record of the failure.
    - `raises`: whether the report has an error's text.
    - `round`: in which it was written, unseen before `first` was answered to it.
    """

    thread: str
    kind: str
    settled: str
    raises: bool
    language: str
    failure: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    record: bool = False
    round: int = 0
    first: str = ""

    @property
    def failures(self) -> frozenset[str]:
        return frozenset(filter(None, self.failure.replace(" ", "").split(",")))


@functools.cache
def reports() -> Mapping[str, LabelledReport]:
    """Every report by the name of its folder."""
    files = sorted(FOLDER.glob("*/truth.toml"))
    return {file.parent.name: msgspec.toml.decode(file.read_bytes(), type=LabelledReport) for file in files}


def answered(name: str) -> str:
    """What `diagnose` says of a report: the failure that it names, or the few that it may be; empty for none."""
    diagnosis = answer(DiagnoseRequest(logs=(str(FOLDER / name / "report.md"),))).diagnosis
    if diagnosis.failure:
        return diagnosis.failure + NAMED
    several = [match.failure.name for match in diagnosis.several]
    return OR.join(several or [candidate.failure.name for candidate in diagnosis.by_words])


def table(answers: Mapping[str, str]) -> str:
    """Markdown: for each round, how many reports of a known failure had it among the answer's, with and without an
    error's text, how many got a wrong name, and how many of others got no candidate."""
    rounds = sorted({report.round for report in reports().values()})
    rows = []
    for number in (*rounds, 0):
        some = {name: each for name, each in reports().items() if number in (0, each.round) and name in answers}
        known = [(name, each) for name, each in some.items() if each.kind == KNOWN]
        right = {name for name, each in known if each.failures & {*answers[name].removesuffix(NAMED).split(OR)}}
        wrong = sum(
            answers[name].endswith(NAMED) and answers[name].removesuffix(NAMED) not in each.failures
            for name, each in some.items()
        )
        cells = [_share(sum(name in right for name in group), len(group)) for group in _by_raising(known)]
        for kind in (NEW, BEYOND):
            group = [name for name, each in some.items() if each.kind == kind]
            cells.append(_share(sum(not answers[name] for name in group), len(group)))
        rows.append(row(f"round {number}" if number else "all", str(len(some)), *cells, str(wrong)))
    head = ("reports", "of them", "known, in words: found", "known, with an error: found")
    return "\n".join(headed((*head, "new: no candidate", "beyond: no candidate", "named wrongly"), rows))


def _by_raising(known: Sequence[tuple[str, LabelledReport]]) -> tuple[list[str], list[str]]:
    return [name for name, each in known if not each.raises], [name for name, each in known if each.raises]


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}"


def both_tables() -> str:
    """How the reports of each round were answered at first, and how all are answered today."""
    first = table({name: each.first for name, each in reports().items()})
    today = table({name: answered(name) for name in reports()})
    return f"First tries, by round:\n\n{first}\n\nToday's answers:\n\n{today}"
