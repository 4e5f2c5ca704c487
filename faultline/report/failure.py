"""One failure on the terminal: the cause, what one sees, where it happens, what helps and what doesn't, the records."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from rich.console import Console

from faultline.base.console import write_beside, write_line
from faultline.base.text import here, listing, short_link
from faultline.catalogue import REMEDIES, TRIED_HERE, Failure, stories
from faultline.cells import rules
from faultline.observations import measured, remedies, symptoms
from faultline.observations.remedies import Fate
from faultline.report import claims
from faultline.report.claims import remedy_rows
from faultline.runs.results import Result, outcomes

WORDS = {"verified": "green", "refuted": "red", "conditional": "yellow"}


def show(
    console: Console,
    failure: Failure,
    story: Mapping[str, str],
    fates: Collection[Fate],
    source: str,
    signatures: bool = False,
    on_gpus: Collection[str] = (),
) -> None:
    """Print what the catalogue has of a failure: `story` are the sections of its README, `source` says who measured.

    `on_gpus` are sentences of what is known of GPUs.
    """
    write_line(console, failure.title, "bold")
    write_line(console, f"  {failure.name}", "dim")
    if failure.first_seen:
        write_line(console, f"  first seen in: {failure.first_seen}", "dim")
    today = "\n\n".join(symptoms.endings(failure)) or symptoms.happens_today(failure)
    _part(console, "Cause", story.get("Cause", ""))
    _part(console, "What you see", "\n\n".join(stories.symptom_and_error(story)))
    _part(console, "Happens today", today.replace("`", ""))
    _part(console, "On a GPU", " ".join(on_gpus))
    remedies = [fate for fate in fates if fate.claim.kind in REMEDIES and fate.word in WORDS]
    helpful = [fate for word in ("verified", "conditional") for fate in remedies if fate.word == word]
    _fates(console, "What helps", helpful)
    _fates(console, "What doesn't", [fate for fate in remedies if fate.word == "refuted"])
    _fates(console, "Also claimed", [fate for fate in fates if fate not in remedies and fate.word in WORDS])
    untested = [fate.claim.text for fate in fates if fate.word not in WORDS]
    _part(console, "Claimed, and no cell can tell", "\n\n".join(untested))
    _part(console, "Variants", "\n\n".join(_variants(failure)))
    _heading(console, "Records")
    facts = {"since": failure.since, "until": failure.until, "upstream": failure.upstream, "measured": source}
    for name, text in facts.items():
        write_beside(console, name, text, max(map(len, facts)) + 2)
    sources = (claim.source for claim in failure.claims.values() if claim.source)
    _lines(console, dict.fromkeys((*failure.records, *sources)))
    if signatures:
        _heading(console, "Signatures")
        _lines(console, [f"{name}: {pattern}" for name, pattern in failure.errors.items()])
    _heading(console, "Commands")
    _lines(console, [here(line) for line in commands(failure)])


def fates(failure: Failure, newest: Collection[Result]) -> list[Fate]:
    """What became of every claim by the committed record, beside what the results of the newest run say of it."""
    yours = claims.verdicts_in_run(failure, outcomes(newest))
    every = []
    for key, claim in failure.claims.items():
        judged = remedies.judge_claim(failure, claim)
        pro, contra = len(judged.verdict.supporting), len(judged.verdict.against)
        against = (*judged.where, f"on {listing(judged.stacks)}") if judged.stacks else judged.where
        fate = Fate(key, claim, judged.verdict.word, pro, pro + contra, against)
        if yours[key].word in WORDS:
            number = len(yours[key].supporting)
            of_run = f"your newest run: {yours[key].word}, {number} of {number + len(yours[key].against)}"
            fate = replace(fate, against=(of_run, *against))
        every.append(fate)
    return every


def commands(failure: Failure) -> list[str]:
    """The commands that run a failure, as they are typed."""
    cell = measured.example(failure)
    lines = [f"faultline run --failure {failure.name}"]
    lines += [f"faultline reproduce {failure.name}"] if failure.reported else []
    _, signature = measured.outcomes(failure).get(cell, ("", "")) if cell else ("", "")
    if cell and not rules.exportable(cell, signature):
        return [*lines, f"faultline run --cell {cell.id}"]
    return lines + ([f"faultline export {cell.id} -o repro.py"] if cell else [])


def _variants(failure: Failure) -> list[str]:
    """Variants with what they run, those together that run the same in several trainers."""
    names: dict[str, list[str]] = {}
    for variant in failure.variants:
        where = "" if variant.strategies == ("*",) else f" (only {', '.join(variant.strategies)})"
        names.setdefault(failure.described(variant), []).append(variant.name + where)
    return [f"{', '.join(alike)}: {text}" for text, alike in names.items()]


def _heading(console: Console, heading: str) -> None:
    write_line(console)
    write_line(console, heading, "bold")


def _part(console: Console, heading: str, text: str) -> None:
    """Paragraphs under a heading; code, which is indented, isn't wrapped."""
    if text:
        _heading(console, heading)
    for block in filter(None, text.split("\n\n")):
        if block.startswith("    "):
            _lines(console, block.splitlines())
        else:
            write_beside(console, "", stories.plain(block), 0)


def _lines(console: Console, lines: Iterable[str]) -> None:
    """Lines that somebody copies, which are never wrapped."""
    for line in lines:
        write_line(console, f"  {line}")


def _fates(console: Console, heading: str, fates: Collection[Fate]) -> None:
    if fates:
        _heading(console, heading)
    for fate in fates:
        [(word, text, cells)] = remedy_rows([fate])
        source = short_link(fate.claim.source) or TRIED_HERE
        write_beside(console, word, f"{text} [{cells}] ({source})", max(map(len, WORDS)) + 2, WORDS[word])
