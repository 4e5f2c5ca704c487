"""How often `diagnose` is right: on the errors of runs, on logs that people pasted, and on near misses."""

import io
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.base.markdown import headed, put, row
from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures
from faultline.diagnose import lines as diagnose_lines
from faultline.diagnose.diagnosis import Diagnosis, diagnose
from faultline.maintain import record
from faultline.observations import measured, store
from faultline.observations.matching import Hints, in_place

FIXTURES = ROOT / "fixtures"
LOGS, NEAR_MISSES = FIXTURES / "logs", FIXTURES / "near_misses"

TRACEBACK_ALONE = "errors of runs, the traceback alone"
WITH_PLACE = "errors of runs, with strategy and checkpointing"
PASTED = "logs that people pasted"
NEAR_MISS = "near misses"
WORTHS = ("right", "one_of", "less", "wrong", "listed")
UNKNOWN, MECHANISM, OR = "unknown", " (mechanism)", " or "


@dataclass(frozen=True)
class LabelledLog:
    """A log and its right answer: a failure, or ``unknown``; with `mechanism` only the failure's mechanism is right."""

    group: str
    name: str
    answer: str
    log: bytes
    options: Hints | None = None
    mechanism: bool = False

    @property
    def label(self) -> str:
        return f"{self.answer}{MECHANISM}" if self.mechanism else self.answer


@dataclass(frozen=True)
class Scored:
    """One group: how many logs have a failure of the catalogue, how many don't, and how these were answered."""

    group: str
    with_answer: int
    without: int
    worths: Counter[str]

    @property
    def shares(self) -> dict[str, float]:
        """What was not named wrongly, of all that was named; what was named rightly or as one of several, of all that
        have one."""
        named = self.worths["right"] + self.worths["one_of"] + self.worths["less"]
        return {
            "precision": named / ((named + self.worths["wrong"]) or 1),
            "recall": (self.worths["right"] + self.worths["one_of"]) / (self.with_answer or 1),
        }


def labelled_logs() -> Iterator[LabelledLog]:
    """Every recorded error twice, with and without its cell's place, then every log of fixtures/."""
    for number, error in enumerate(store.errors().values(), 1):
        log = (error.traceback or error.text).encode()
        cell, _ = measured.runs(error)[0]
        place = Hints(frozenset([cell.strategy]), frozenset([cell.checkpointing]))
        with_place = in_place(error.traceback, cell.strategy, cell.checkpointing)
        for group, text, options in ((TRACEBACK_ALONE, error.traceback, None), (WITH_PLACE, with_place, place)):
            answer, same = record.answer(failures()[error.failure], error.signature, text)
            yield LabelledLog(group, f"errors.jsonl:{number}", answer or UNKNOWN, log, options, same)
    for group, folder in ((PASTED, LOGS), (NEAR_MISS, NEAR_MISSES)):
        for name, entry in index(folder).items():
            log = (folder / f"{name}.log").read_bytes()
            yield LabelledLog(group, name, entry.get("answer", UNKNOWN), log, mechanism="mechanism" in entry)


def index(folder: Path) -> dict[str, dict[str, str]]:
    """The entry of each log in a folder's index.toml."""
    return tomllib.loads((folder / "index.toml").read_text(encoding="utf-8"))


def diagnosed(labelled: LabelledLog) -> Diagnosis:
    return diagnose(
        lambda wanted: diagnose_lines.lines(labelled.name, io.BytesIO(labelled.log), wanted), labelled.options
    )


def answer_of(diagnosis: Diagnosis) -> str:
    """The answer in a few words: ``FAILURE``, ``FAILURE (mechanism)``, ``FAILURE or FAILURE``, or ``unknown``."""
    if match := diagnosis.match:
        return match.failure.name + (MECHANISM if match.mechanism else "")
    return OR.join(each.failure.name for each in diagnosis.several) or UNKNOWN


def worth(labelled: LabelledLog, answer: str) -> str:
    """The worth of an answer; empty if no failure was named.

    right   the failure, or only its mechanism where no more is right
    one_of  two or three failures, the right one among them
    less    the mechanism alone, of the right failure
    wrong   another failure, or the failure where only its mechanism is right, or several without the right one
    listed  two or three failures, for an error that is none of the catalogue's
    """
    if answer == UNKNOWN:
        return ""
    if answer == labelled.label:
        return "right"
    names = answer.removesuffix(MECHANISM).split(OR)
    if len(names) > 1:
        return "listed" if labelled.answer == UNKNOWN else "one_of" if labelled.answer in names else "wrong"
    return "less" if labelled.answer in names and answer.endswith(MECHANISM) else "wrong"


def score(answers: Sequence[tuple[LabelledLog, str]]) -> list[Scored]:
    """The logs and their answers, counted by group, then all together."""
    groups = list(dict.fromkeys(labelled.group for labelled, _ in answers))
    counted = []
    for group in (*groups, "all"):
        chosen = [(labelled, answer) for labelled, answer in answers if group in ("all", labelled.group)]
        with_answer = sum(labelled.answer != UNKNOWN for labelled, _ in chosen)
        worths = Counter(worth(labelled, answer) for labelled, answer in chosen)
        counted.append(Scored(group, with_answer, len(chosen) - with_answer, worths))
    return counted


def table(answers: Sequence[tuple[LabelledLog, str]]) -> str:
    """Precision and recall as Markdown, and each log that was answered otherwise."""
    columns = (
        "of the catalogue",
        "others",
        "named rightly",
        "one of several",
        "the mechanism alone",
        "named wrongly",
        "others listed",
    )
    scores = score(answers)
    rows = []
    for scored in scores:
        counts = (scored.with_answer, scored.without, *(scored.worths[word] for word in WORTHS))
        rows.append(row(scored.group, *map(str, counts), *(f"{share:.3f}" for share in scored.shares.values())))
    lines = headed(("group", *columns, *scores[-1].shares), rows)
    missed = [
        f"- {labelled.name} ({labelled.group}): {labelled.label}, answered {answer}"
        for labelled, answer in answers
        if worth(labelled, answer) not in (("", "listed") if labelled.answer == UNKNOWN else ("right", "one_of"))
    ]
    return "\n".join([*lines, "", "Answered otherwise:", "", *missed] if missed else lines)


def run() -> int:
    """Score every log and write the table into fixtures/README.md; exit code 1 if a failure was named wrongly."""
    answers = [(labelled, answer_of(diagnosed(labelled))) for labelled in labelled_logs()]
    text = table(answers)
    print(text)
    print(put(FIXTURES / "README.md", lambda: text))
    return EXIT_UNEXPECTED if score(answers)[-1].worths["wrong"] else EXIT_AS_EXPECTED
