"""How often `diagnose` is right: on the errors of runs, on logs that people pasted, and on near misses."""

import io
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.base.markdown import headed, put, row
from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures
from faultline.diagnose import lines as diagnose_lines
from faultline.diagnose.diagnosis import Diagnosis, diagnose
from faultline.maintain import record, score_reports
from faultline.observations import measured, store
from faultline.observations.matching import Hints, in_place

FIXTURES = ROOT / "fixtures"
LOGS, NEAR_MISSES = FIXTURES / "logs", FIXTURES / "near_misses"

TRACEBACK_ALONE = "errors of runs, the traceback alone"
WITH_PLACE = "errors of runs, with strategy and checkpointing"
PASTED = "logs that people pasted"
NEAR_MISS = "near misses"
UNSETTLED = "unsettled"
UNKNOWN, MECHANISM, OR, PERHAPS = "unknown", " (mechanism)", " or ", " (perhaps)"


@dataclass(frozen=True)
class LogEntry:
    """What index.toml says of a log of fixtures/.

    - `answer`: the failure that hit it, empty for none of the catalogue's; with `mechanism` no more is right than that.
    - `unsettled`: that nobody found out what it was.
    - `what`, `source`: what it is in words, and where it was pasted.
    - `later`: that it was collected once the rules were there, before there were rounds.
    - `round`: in which it was collected, unseen before `first` was answered to it.
    - `as_pasted`: that there is no file of it, for what is left without its writer's words would be answered otherwise.
    """

    source: str = ""
    answer: str = ""
    what: str = ""
    mechanism: bool = False
    unsettled: bool = False
    later: bool = False
    round: int = 0
    first: str = ""
    as_pasted: bool = False


@dataclass(frozen=True)
class LabelledLog:
    """A log and its right answer: a failure, ``unknown``, or ``unsettled``.

    With `mechanism` only the failure's mechanism is right.
    """

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
    unsettled: int
    worths: Counter[str]

    @property
    def shares(self) -> dict[str, float | None]:
        """Of what was named, what was named rightly; the same with lists, which are right if they hold the failure;
        the same if each list for an error that is none of the catalogue's is wrong; and of all that have an answer,
        what was named rightly or is in a list. None where there is nothing to share.
        """
        count = self.worths
        named, wrong = count["right"] + count["less"], count["wrong"] + count["more"]
        answered = named + count["one of"]
        return {
            "precision of names": _share(named, named + wrong),
            "with lists": _share(answered, answered + wrong),
            "lists for others wrong": _share(answered, answered + wrong + count["listed"]),
            "recall": _share(count["right"] + count["one of"], self.with_answer),
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


COLUMNS = {
    "right": "named rightly",
    "one of": "one of several",
    "less": "only the mechanism",
    "more": "more than the mechanism",
    "wrong": "named wrongly",
    "listed": "others as one of several",
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
            if not entry.as_pasted:
                yield _labelled(group, name, entry, (folder / f"{name}.log").read_bytes())


def first_tries() -> list[tuple[LabelledLog, str]]:
    """Every log that was collected in a round, grouped by it, and how it was answered before any rule was changed."""
    entries = [item for folder in (LOGS, NEAR_MISSES) for item in index(folder).items() if item[1].round]
    entries.sort(key=lambda item: (item[1].round, item[0]))
    return [(_labelled(f"round {entry.round}", name, entry), entry.first) for name, entry in entries]


def _labelled(group: str, name: str, entry: LogEntry, log: bytes = b"") -> LabelledLog:
    answer = UNSETTLED if entry.unsettled else entry.answer or UNKNOWN
    return LabelledLog(group, name, answer, log, mechanism=entry.mechanism)


def index(folder: Path) -> dict[str, LogEntry]:
    """The entry of each log in a folder's index.toml."""
    return msgspec.toml.decode((folder / "index.toml").read_bytes(), type=dict[str, LogEntry])


def diagnosed(labelled: LabelledLog) -> Diagnosis:
    return diagnose(
        lambda wanted: diagnose_lines.lines(labelled.name, io.BytesIO(labelled.log), wanted), labelled.options
    )


def answer_of(diagnosis: Diagnosis) -> str:
    """The answer in a few words: ``FAILURE``, ``FAILURE (mechanism)``, ``FAILURE or FAILURE``, ``unknown``; or
    ``FAILURE (perhaps)`` for no more than a line that the failure prints, which may be harmless."""
    if match := diagnosis.match:
        return match.failure.name + (MECHANISM if match.mechanism else "")
    if diagnosis.warned:
        return OR.join(dict.fromkeys(warned.failure for warned in diagnosis.warned)) + PERHAPS
    return OR.join(each.failure.name for each in diagnosis.several) or UNKNOWN


def worth(labelled: LabelledLog, answer: str) -> str:
    """The worth of an answer; empty if no failure was named, or if nobody knows the right one.

    right   the failure, or only its mechanism where no more is right
    one of  two or three failures, the right one among them; or perhaps the right one
    less    the mechanism alone, of the right failure
    more    the right failure, where only its mechanism is right
    wrong   another failure, or several without the right one
    listed  two or three failures, or perhaps one, for an error that is none of the catalogue's
    """
    if answer == UNKNOWN or labelled.answer == UNSETTLED:
        return ""
    if answer == labelled.label:
        return "right"
    names = answer.removesuffix(MECHANISM).removesuffix(PERHAPS).split(OR)
    if len(names) > 1 or answer.endswith(PERHAPS):
        return "listed" if labelled.answer == UNKNOWN else "one of" if labelled.answer in names else "wrong"
    if labelled.answer not in names:
        return "wrong"
    return "less" if answer.endswith(MECHANISM) else "more"


def score(answers: Sequence[tuple[LabelledLog, str]]) -> list[Scored]:
    """The logs and their answers, counted by group, then all together."""
    groups = list(dict.fromkeys(labelled.group for labelled, _ in answers))
    counted = []
    for group in (*groups, "all"):
        chosen = [(labelled, answer) for labelled, answer in answers if group in ("all", labelled.group)]
        labels = Counter(labelled.answer for labelled, _ in chosen)
        unsettled, without = labels[UNSETTLED], labels[UNKNOWN]
        worths = Counter(worth(labelled, answer) for labelled, answer in chosen)
        counted.append(Scored(group, len(chosen) - unsettled - without, without, unsettled, worths))
    return counted


def table(answers: Sequence[tuple[LabelledLog, str]], missed: bool = True) -> str:
    """Precision and recall as Markdown, and if wanted each log that was answered otherwise."""
    scores = score(answers)
    rows = []
    for scored in scores:
        counts = (scored.with_answer, scored.without, scored.unsettled, *(scored.worths[word] for word in COLUMNS))
        rows.append(row(scored.group, *map(str, counts), *map(_share_in_words, scored.shares.values())))
    head = ("group", "of the catalogue", "others", "unsettled", *COLUMNS.values(), *scores[-1].shares)
    otherwise = [
        f"- {labelled.name} ({labelled.group}): {labelled.label}, answered {answer}"
        for labelled, answer in answers
        if worth(labelled, answer) in ("less", "more", "wrong")
        or (answer == UNKNOWN and labelled.answer not in (UNKNOWN, UNSETTLED))
    ]
    lines = headed(head, rows)
    return "\n".join([*lines, "", "Answered otherwise:", "", *otherwise] if missed and otherwise else lines)


def _share_in_words(share: float | None) -> str:
    return "-" if share is None else f"{share:.3f}"


def report(answers: Sequence[tuple[LabelledLog, str]]) -> str:
    """Both tables: how the logs of each round were answered at first, and how all are answered today."""
    first = table(first_tries(), missed=False)
    return f"First tries, by round:\n\n{first}\n\nToday's answers:\n\n{table(answers)}"


def run() -> int:
    """Score every log and write the tables into fixtures/README.md; exit code 1 if a failure is named wrongly."""
    answers = [(labelled, answer_of(diagnosed(labelled))) for labelled in labelled_logs()]
    text = report(answers)
    print(text)
    print(put(FIXTURES / "README.md", lambda: text))
    print(put(score_reports.FOLDER / "README.md", score_reports.both_tables))
    return EXIT_UNEXPECTED if score(answers)[-1].worths["wrong"] else EXIT_AS_EXPECTED
