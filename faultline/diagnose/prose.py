"""What a report in words may be about: the failures whose symptoms it comes nearest to."""

import bisect
import functools
import json
import math
import re
import tomllib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from faultline.base.paths import OBSERVATIONS
from faultline.catalogue import REMEDIES, Failure
from faultline.catalogue.loading import failures, symptoms
from faultline.catalogue.recognition import Symptom, Symptoms
from faultline.cells import claims
from faultline.cells.cell import Cell
from faultline.diagnose.lines import Line
from faultline.observations import measured, remedies, store
from faultline.observations import symptoms as symptoms_of
from faultline.observations.matching import Hints, fits
from faultline.observations.measured import Place

EXACT = "exact"  # the table of terms.toml whose patterns are searched with regard to case
WEIGHTS = "terms.json"  # in observations/
MOST = 3  # candidates
LINES = 400  # of a text; what is longer is a log, which has errors and numbers
LONGEST = 20_000  # characters that are kept of it
SENTENCES = 400
AT_ONCE = 5  # sentences that are compared with a symptom together
# How near a report is: the weight of the terms that it shares with a symptom, of all that the symptom has and a bit
# more, so that one of few terms takes all of them. Chosen on the reports of fixtures/reports.
MORE = 2.0
ENOUGH = 0.35
CLOSE = 0.7  # where nothing else is asked for
BESIDE_BEST = 0.7  # of the best candidate's nearness that another one has
IN_ONE = 0.5  # the weight of a term that a symptom has in one of its two languages
APART = 0.85  # the weight of terms that are in the text, and not beside the others

CODE = re.compile(r"^```[^`]{0,4000}```", re.MULTILINE)  # a block counts as a sentence
SENTENCE = re.compile(r"(?<=[.!?;])\s+|[\u3002\uff01\uff1f\uff1b]|\n+")
# Frames, records and bars.
PRINTED = re.compile(r"^\s*(?:File \"|Traceback|[{}\[(]|\d+%\||[\w.]*(?:Error|Exception|Warning): )")
WORD = re.compile(r"\b[A-Za-z]\w*(?:\.\w+)*")
CAMEL = re.compile(r"(?:[A-Z][a-z0-9]+){2,9}")
LONGEST_NAME = 60
_HAN = "[\u4e00-\u9fff]"
BESIDE_HAN = re.compile(rf"(?<={_HAN})(?=[A-Za-z0-9])|(?<=[A-Za-z0-9])(?={_HAN})")
ENGINES = frozenset({"ddp", "fsdp", "zero0", "zero1", "zero2", "zero3"})  # terms


@dataclass(frozen=True)
class NearMatch:
    """A failure that a report may be about, the symptom that the report comes nearest to, and the words for it.

    `cell` shows it where the run may have been, if anywhere as the report has it.
    """

    failure: Failure
    symptom: Symptom
    nearness: float
    words: str
    cell: Cell | None = None

    @property
    def remedy(self) -> str:
        """The first remedy that was verified in that cell; empty where none was."""
        fates = remedies.fates_of(self.failure, [self.cell]) if self.cell else []
        return next((fate.claim.text for fate in fates if fate.word == "verified" and fate.claim.kind in REMEDIES), "")


def only_with(failure: Failure) -> str:
    """What the code of everybody has who has this failure; empty where nobody wrote that down."""
    shown = next((each for each in failure.variants if each.broken and each.look_for), None)
    return shown.look_for if shown else ""


class ProseReader:
    """Takes the lines of a text, and keeps those that somebody wrote: its first ones, without what programs print."""

    def __init__(self) -> None:
        self._count, self._left = 0, LONGEST
        self._kept: list[str] = []

    @property
    def open(self) -> bool:
        """Whether every line still counts."""
        return self._count < LINES and self._left > 0

    @property
    def text(self) -> str:
        return "\n".join(self._kept)

    def take(self, line: Line) -> None:
        if self.open:
            self._count += 1
            if not (line.dated or line.rank is not None or PRINTED.search(line.text)):
                self._kept.append(line.text[: self._left])
                self._left -= len(line.text)


@dataclass(frozen=True)
class _Report:
    """The terms of a text: of each run of a few sentences, with its words, and of the whole."""

    windows: Sequence[tuple[str, frozenset[str]]]
    everywhere: frozenset[str]


def candidates(text: str, hints: Hints) -> tuple[NearMatch, ...]:
    """At most three failures, the nearest first; none where nothing in the text comes near enough.

    A report of a failure has the terms that its symptoms.toml asks for. One that doesn't show under the strategies or
    in the checkpointing modes that are known of the run is none, unless the text compares several strategies.
    """
    text = CODE.sub(lambda block: block[0].replace("\n", " "), text)
    sentences = [words.strip() for words in SENTENCE.split(text) if words.strip()][:SENTENCES]
    if not sentences:
        return ()
    present = terms_of_each(sentences)
    windows = [
        (" ".join(sentences[start:end]), frozenset[str]().union(*present[start:end]))
        for start in range(len(sentences))
        for end in range(start + 1, min(start + AT_ONCE, len(sentences)) + 1)
    ]
    report = _Report(windows, frozenset[str]().union(*present))
    near = []
    for name, failure in failures().items():
        if (known := symptoms(name)).symptom:
            match = _nearest(failure, known, report)
            if match.nearness >= (ENOUGH if _asked_for(known, report) else CLOSE):
                near.append(match)
    near.sort(key=lambda each: -each.nearness)
    if len(report.everywhere & ENGINES) > 1:  # a text that compares engines doesn't say under which it went wrong
        hints = Hints()
    near = [
        each
        for each in near
        if any(fits(place, hints.strategies, hints.modes) for place in places_of(each.failure.name))
    ]
    best = [each for each in near if each.nearness >= BESIDE_BEST * near[0].nearness][:MOST]
    return tuple(replace(each, cell=_cell_of(each.failure, hints, report.everywhere)) for each in best)


def _cell_of(failure: Failure, hints: Hints, worded: frozenset[str]) -> Cell | None:
    """The cell that shows a failure where the run may have been, as a report has it if one does; None where it shows on
    other stacks alone."""
    outcomes = measured.outcomes(failure, measured.shown_on(failure))
    shown = claims.showing(failure, outcomes)
    there = [cell for cell in shown if fits(measured.place(cell), hints.strategies, hints.modes)]

    def otherwise(cell: Cell) -> bool:
        seen = symptoms_of.seen_of(cell, outcomes[cell])
        said_so = [symptoms_of.SYMPTOMS[each].terms for each in seen] or [frozenset({"raises"})]
        return all(terms.isdisjoint(worded) for terms in said_so)

    return min([*measured.quick(there), *there], key=otherwise, default=None)


def _asked_for(known: Symptoms, report: _Report) -> bool:
    """Whether a report has the terms that each report of a failure has."""
    return _has_each(known.anywhere, report.everywhere) and any(
        _has_each(known.together, present) for _, present in report.windows
    )


def _has_each(groups: Iterable[str], present: Collection[str]) -> bool:
    return all(any(term in present for term in group.split("|")) for group in groups)


def _nearest(failure: Failure, known: Symptoms, report: _Report) -> NearMatch:
    """The symptom to which a report comes nearest, and where."""

    def near(symptom: Symptom) -> NearMatch:
        shows = weights().get(symptom.text, {})  # summed exactly, as a set has another order in each process
        apart = APART * math.fsum(shows[term] for term in shows.keys() & report.everywhere)
        words, together = max(
            ((words, math.fsum(shows[term] for term in shows.keys() & present)) for words, present in report.windows),
            key=lambda each: each[1],
        )
        return NearMatch(failure, symptom, max(together, apart) / (math.fsum(shows.values()) + MORE), words)

    return max(map(near, known.symptom), key=lambda each: each.nearness)


@store.view
def places_of(name: str) -> frozenset[Place]:
    """Where a failure shows, on any stack."""
    failure = failures()[name]
    every = (measured.outcomes(failure), *measured.by_stack(name).values())
    return frozenset(measured.place(cell) for outcomes in every for cell in claims.showing(failure, outcomes))


def terms(text: str) -> frozenset[str]:
    """The terms of the field in a text, and the names of code."""
    [present] = terms_of_each([text.replace("\n", " ")])
    return present


def terms_of_each(lines: Sequence[str]) -> list[frozenset[str]]:
    """The terms of each of many lines: a pattern that goes once over all of them is much faster."""
    whole = BESIDE_HAN.sub(" ", "\n".join(lines))
    starts = [0, *(match.end() for match in re.finditer("\n", whole))]
    present: list[set[str]] = [set() for _ in lines]
    for name, pattern in vocabulary():
        for match in pattern.finditer(whole):
            present[bisect.bisect_right(starts, match.start()) - 1].add(name)
    for match in WORD.finditer(whole):
        if len(name := match[0]) <= LONGEST_NAME and ("_" in name or "." in name or CAMEL.fullmatch(name)):
            present[bisect.bisect_right(starts, match.start()) - 1].add(name.lower())
    return [frozenset(each) for each in present]


@functools.cache
def vocabulary() -> Sequence[tuple[str, re.Pattern[str]]]:
    """Each term with a pattern of what people call it; one that is written in capitals has two."""
    tables = tomllib.loads((Path(__file__).parent / "terms.toml").read_text(encoding="utf-8"))
    return [
        (name, re.compile(text, 0 if title == EXACT else re.IGNORECASE))
        for title, table in tables.items()
        for name, text in table.items()
    ]


@store.view
def weights() -> Mapping[str, Mapping[str, float]]:
    """How much each term of a symptom shows, by the symptom's text, as `written_weights` has it."""
    file = OBSERVATIONS / WEIGHTS
    return msgspec.json.decode(file.read_bytes(), type=dict[str, dict[str, float]]) if file.exists() else {}


def written_weights() -> bytes:
    """The weights of the symptoms' terms as JSON: the fewer failures have a term, the more it shows. They are recorded,
    as to find the terms of all symptoms takes longer than to read a log."""
    every = {name: symptoms(name).symptom for name in failures()}
    each = [symptom for some in every.values() for symptom in some]
    english, chinese = terms_of_each([one.text for one in each]), terms_of_each([one.zh for one in each])
    had: Counter[str] = Counter()
    both = dict(zip(each, zip(english, chinese, strict=True), strict=True))
    for some in every.values():
        had.update({term for symptom in some for present in both[symptom] for term in present})
    rarity = {term: math.log((len(every) + 1) / number) for term, number in had.items()}
    weights = {
        symptom.text: {
            term: round(rarity[term] * (1.0 if term in one & other else IN_ONE), 3) for term in sorted(one | other)
        }
        for symptom, (one, other) in both.items()
    }
    return json.dumps(weights, indent=0, ensure_ascii=False).encode() + b"\n"
