"""How often `diagnose` is right: on the errors of runs, on logs that people pasted, and on near misses."""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline import known, logs, readmes, recorded
from faultline.catalogue import ROOT, failures
from faultline.diagnose import UNKNOWN, Diagnosis, diagnose
from faultline.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.hints import Hints
from faultline.matrix import Cell

FIXTURES = ROOT / "fixtures"
LOGS, NEAR_MISSES = FIXTURES / "logs", FIXTURES / "near_misses"

ALONE = "errors of runs, the traceback alone"
TOLD = "errors of runs, with strategy and checkpointing"
PASTED = "logs that people pasted"
OTHERS = "near misses"
MECHANISM = " (mechanism)"


@dataclass(frozen=True)
class Sample:
    """A log and the answer that is right: a failure, or ``unknown``; of a `mechanism` that is all that may be said.

    `same` are other failures that end in these words: of them the mechanism may be named.
    """

    group: str
    name: str
    answer: str
    log: bytes
    asked: Hints | None = None
    mechanism: bool = False
    same: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Scored:
    """One group: how many samples have an answer in the catalogue and how many don't, and what was said of them.

    `less` counts those of whose failure only the mechanism was named, `wrong` also a failure named for its mechanism.
    """

    group: str
    with_answer: int
    without: int
    right: int
    less: int
    wrong: int

    @property
    def precision(self) -> str:
        return _share(self.right + self.less, self.right + self.less + self.wrong)

    @property
    def recall(self) -> str:
        return _share(self.right, self.with_answer)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "none"


def samples() -> Iterator[Sample]:
    """Every recorded error twice, with and without its cell's place, then every log of fixtures/."""
    for number, entry in enumerate(known.recorded(), 1):
        answer = recorded.answer(failures()[entry["failure"]], entry["signature"], entry["traceback"]) or UNKNOWN
        log = (entry["traceback"] or entry["error"]).encode()
        cell = Cell.parse(next(iter(entry["stacks"].values()))[0])
        name = f"errors.jsonl:{number}"
        same = frozenset(
            failure.name
            for failure in failures().values()
            if entry["signature"] in failure.signatures and entry["signature"] not in failure.elsewhere
        )
        yield Sample(ALONE, name, answer, log, same=same)
        place = Hints(frozenset([cell.strategy]), frozenset([cell.checkpointing]))
        yield Sample(TOLD, name, answer, log, place, same=same)
    for group, folder in ((PASTED, LOGS), (OTHERS, NEAR_MISSES)):
        for name, told in index(folder).items():
            log = (folder / f"{name}.log").read_bytes()
            yield Sample(group, name, told.get("answer", UNKNOWN), log, mechanism="mechanism" in told)


def index(folder: Path) -> dict[str, dict[str, Any]]:
    """What a folder's index.toml says of each of its logs."""
    return tomllib.loads((folder / "index.toml").read_text(encoding="utf-8"))


def answered(sample: Sample) -> Diagnosis:
    return diagnose(lambda wanted: logs.lines(sample.name, [sample.log], wanted), sample.asked)


def said(told: Diagnosis) -> str:
    """The answer in a word or two; ``FAILURE (mechanism)`` where no more than that was named."""
    return f"{told.answer}{MECHANISM}" if told.match and told.match.mechanism else told.answer


def less(sample: Sample) -> set[str]:
    """The answers that name the right mechanism and no more."""
    return {f"{name}{MECHANISM}" for name in (right(sample), *sample.same)}


def right(sample: Sample) -> str:
    return f"{sample.answer}{MECHANISM}" if sample.mechanism else sample.answer


def score(told: Sequence[tuple[Sample, str]]) -> list[Scored]:
    """Samples and what was answered, counted by group, then all together."""
    groups = list(dict.fromkeys(sample.group for sample, _ in told))
    return [
        Scored(
            group or "all",
            sum(s.answer != UNKNOWN for s, _ in own),
            sum(s.answer == UNKNOWN for s, _ in own),
            sum(said == right(s) != UNKNOWN for s, said in own),
            sum(said in less(s) for s, said in own),
            sum(said not in (UNKNOWN, right(s), *less(s)) for s, said in own),
        )
        for group in (*groups, "")
        for own in [[(s, said) for s, said in told if group in ("", s.group)]]
    ]


def table(told: Sequence[tuple[Sample, str]]) -> str:
    """Precision and recall as Markdown, and each sample that was answered otherwise."""
    lines = [
        "| | of the catalogue | others | named rightly | the mechanism alone | named wrongly | precision | recall |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
        *(
            f"| {s.group} | {s.with_answer} | {s.without} | {s.right} | {s.less} | {s.wrong} "
            f"| {s.precision} | {s.recall} |"
            for s in score(told)
        ),
    ]
    missed = [f"- {s.name} ({s.group}): {right(s)}, answered {said}" for s, said in told if said != right(s)]
    return "\n".join([*lines, "", "Answered otherwise:", "", *missed] if missed else lines)


def command(args: argparse.Namespace) -> int:
    """Score every sample and write the table into fixtures/README.md; exit code 1 where one was named wrongly."""
    told = [(sample, said(answered(sample))) for sample in samples()]
    text = table(told)
    print(text)
    print(readmes.put(FIXTURES / "README.md", lambda: text))
    return EXIT_UNEXPECTED if score(told)[-1].wrong else EXIT_AS_EXPECTED
