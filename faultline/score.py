"""How often `diagnose` is right: on the errors of runs, on logs that people pasted, and on near misses."""

from __future__ import annotations

import argparse
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faultline import known, logs, readmes, recorded
from faultline.catalogue import ROOT, failures
from faultline.diagnose import UNKNOWN, Diagnosis, diagnose
from faultline.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.hints import Hints, in_place
from faultline.matrix import Cell

FIXTURES = ROOT / "fixtures"
LOGS, NEAR_MISSES = FIXTURES / "logs", FIXTURES / "near_misses"

ALONE = "errors of runs, the traceback alone"
TOLD = "errors of runs, with strategy and checkpointing"
PASTED = "logs that people pasted"
OTHERS = "near misses"
MECHANISM, OR = " (mechanism)", " or "


@dataclass(frozen=True)
class Sample:
    """A log and the answer that is right: a failure, or ``unknown``; of a `mechanism` that is all that may be said."""

    group: str
    name: str
    answer: str
    log: bytes
    asked: Hints | None = None
    mechanism: bool = False


@dataclass(frozen=True)
class Scored:
    """One group: how many samples have an answer in the catalogue and how many don't, and what was said of them.

    `one_of` counts those of which two or more failures with one mechanism were named, the right one among them; `less`
    those of whose failure only the mechanism was named; `wrong` also a failure named for its mechanism.
    """

    group: str
    with_answer: int
    without: int
    right: int
    one_of: int
    less: int
    wrong: int

    @property
    def precision(self) -> str:
        good = self.right + self.one_of + self.less
        return _share(good, good + self.wrong)

    @property
    def recall(self) -> str:
        return _share(self.right, self.with_answer)

    @property
    def named(self) -> str:
        """The share of those of the catalogue whose failure was named, be it among others or for its mechanism."""
        return _share(self.right + self.one_of + self.less, self.with_answer)


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f}" if whole else "none"


def samples() -> Iterator[Sample]:
    """Every recorded error twice, with and without its cell's place, then every log of fixtures/."""
    for number, entry in enumerate(known.recorded(), 1):
        log = (entry["traceback"] or entry["error"]).encode()
        cell = Cell.parse(next(iter(entry["stacks"].values()))[0])
        place = Hints(frozenset([cell.strategy]), frozenset([cell.checkpointing]))
        with_place = in_place(entry["traceback"], cell.strategy, cell.checkpointing)
        for group, text, asked in ((ALONE, entry["traceback"], None), (TOLD, with_place, place)):
            answer, same = recorded.answer(failures()[entry["failure"]], entry["signature"], text)
            yield Sample(group, f"errors.jsonl:{number}", answer or UNKNOWN, log, asked, same)
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
    """The answer in a few words; ``FAILURE or FAILURE (mechanism)`` where no more than that is known of them."""
    if not told.match or not told.match.mechanism:
        return told.answer
    return OR.join(dict.fromkeys(match.failure.name for match in (told.match, *told.either))) + MECHANISM


def right(sample: Sample) -> str:
    return f"{sample.answer}{MECHANISM}" if sample.mechanism else sample.answer


def ideal(sample: Sample) -> str:
    return "" if sample.answer == UNKNOWN else "right"


def verdict(sample: Sample, said: str) -> str:
    """What an answer is worth: right, one_of, less, wrong, or nothing where none was given."""
    names = said.removesuffix(MECHANISM).split(OR)
    if said == UNKNOWN:
        return ""
    if said == sample.answer or sample.answer not in names:
        return "right" if said == right(sample) else "wrong"
    if not said.endswith(MECHANISM):
        return "wrong"
    return "right" if sample.mechanism else "one_of" if len(names) > 1 else "less"


def score(told: Sequence[tuple[Sample, str]]) -> list[Scored]:
    """Samples and what was answered, counted by group, then all together."""
    groups = list(dict.fromkeys(sample.group for sample, _ in told))
    counted = []
    for group in (*groups, ""):
        own = [(sample, verdict(sample, said)) for sample, said in told if group in ("", sample.group)]
        named = Counter(sample.answer != UNKNOWN for sample, _ in own)
        worth = Counter(word for _, word in own)
        counts = (worth[word] for word in ("right", "one_of", "less", "wrong"))
        counted.append(Scored(group or "all", named[True], named[False], *counts))
    return counted


def table(told: Sequence[tuple[Sample, str]]) -> str:
    """Precision and recall as Markdown, and each sample that was answered otherwise."""
    columns = ("of the catalogue", "others", "named rightly", "one of several", "the mechanism alone", "named wrongly")
    lines = [
        f"| | {' | '.join(columns)} | precision | recall | named at all |",
        "| --- " * 10 + "|",
        *(
            f"| {s.group} | {s.with_answer} | {s.without} | {s.right} | {s.one_of} | {s.less} | {s.wrong} "
            f"| {s.precision} | {s.recall} | {s.named} |"
            for s in score(told)
        ),
    ]
    missed = [
        f"- {s.name} ({s.group}): {right(s)}, answered {said}" for s, said in told if verdict(s, said) != ideal(s)
    ]
    return "\n".join([*lines, "", "Answered otherwise:", "", *missed] if missed else lines)


def command(args: argparse.Namespace) -> int:
    """Score every sample and write the table into fixtures/README.md; exit code 1 where one was named wrongly."""
    told = [(sample, said(answered(sample))) for sample in samples()]
    text = table(told)
    print(text)
    print(readmes.put(FIXTURES / "README.md", lambda: text))
    return EXIT_UNEXPECTED if score(told)[-1].wrong else EXIT_AS_EXPECTED
