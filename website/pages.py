"""The contents of the site's pages: records for the templates, made from the facts and the stories."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from faultline import catalogue, strategies
from faultline.base.markdown import as_code
from faultline.base.packages import TODAY
from faultline.base.paths import REPROS
from faultline.base.text import count, short_link
from faultline.catalogue import Failure, stories
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did
from faultline.cells.words import group_strategies
from faultline.export.cell import place
from faultline.export.emit import write
from faultline.maintain import reports
from faultline.observations import measured, remedies, symptoms
from faultline.report import failure as report_failure
from faultline.report.claims import claim_in_words
from faultline.report.run import SYMBOLS
from website import docs, facts

MARKDOWN = MarkdownIt("commonmark", {"html": False})
RAISES = "raises an error"
NOWHERE = "not on today's releases"
ORDER = ("verified", "conditional", "refuted", "untested")


@dataclass(frozen=True)
class Download:
    """A file of the site: its path below the site's folder, what its link says, and its content."""

    name: str
    text: str
    content: str


def downloads_of(failure: Failure) -> Iterator[Download]:
    """A failure's files; the report only if `faultline maintain export-all --reports` wrote it."""
    if cell := reports.cell_to_report(failure):
        text = f"one file that shows it without Faultline ({cell.name})"
        yield Download(f"files/{failure.name}.py", text, write(place(cell)))
    if report_file(failure).exists():
        text = report_file(failure).read_text(encoding="utf-8")
        yield Download(f"reports/{failure.name}.md", "the report for upstream", text)


def report_file(failure: Failure) -> Path:
    """The file of a failure's report, if it was written."""
    return reports.FOLDER / f"{failure.name}.md"


@dataclass(frozen=True)
class Card:
    """A failure on the entrance; `words` is what the search looks through beside the patterns. Texts are HTML.

    `sees` is what is seen of it today, and `glance` has the outcomes under each family of strategies.
    """

    name: str
    title: str
    where: str
    helps: str
    until: str
    sees: str
    glance: Mapping[str, Sequence[str]]
    words: str


@dataclass(frozen=True)
class Box:
    """A stack in the strip of releases: `kind` is all, some or none of its cells, and has `part` where these are fewer
    than elsewhere."""

    stack: str
    title: str
    text: str
    kind: str


@dataclass(frozen=True)
class ClaimLine:
    word: str
    html: str
    measured: str
    source: str
    link: str


@dataclass(frozen=True)
class FailurePage:
    """All that a failure's page has; texts are Markdown, unless they are called html."""

    name: str
    title: str
    first_seen: str
    trainers: str
    sees: str
    today: str
    errors: Mapping[str, str]
    cause: str
    since: str
    until: str
    grids: Sequence[facts.Grid]
    others: Sequence[str]
    symbols: Mapping[str, str]
    strips: Mapping[str, Sequence[Box]]
    remedies: Sequence[ClaimLine]
    also_claimed: Sequence[ClaimLine]
    beside: str
    commands: Sequence[str]
    run: str
    record: str
    files: Sequence[Download]


@dataclass(frozen=True)
class FailureLine:
    """A failure on a stack's page: under which strategies it shows there, and in how many cells."""

    name: str
    title: str
    under: str
    count: str


@dataclass(frozen=True)
class StackPage:
    """All that a stack's page has; `other` is the stack to compare it with, `clear` has titles by name."""

    name: str
    title: str
    intro: str
    other: str
    versions: Mapping[str, str]
    shown: Sequence[FailureLine]
    clear: Mapping[str, str]


def cards() -> list[Card]:
    """A card for each failure: by what is seen of it, without an error first, then in the order of their titles."""
    seen = {name: [words for words, by in symptoms.by_symptom().items() if name in by] for name in failures()}
    order = [*symptoms.SYMPTOMS, RAISES, NOWHERE]
    made = [
        Card(
            name=each.name,
            title=html(each.title),
            where=html(typed(symptoms.happens_today(each))),
            helps=html(remedies.first_remedy(each)),
            until=html(each.until),
            sees="; ".join(seen[each.name]) or (RAISES if symptoms.endings(each) else NOWHERE),
            glance=facts.glance(each),
            words=searched(each),
        )
        for each in failures().values()
    ]
    titles = {card.name: re.sub(r"<[^>]+>", "", card.title).lower() for card in made}
    return sorted(made, key=lambda card: (order.index(card.sees.partition(";")[0]), titles[card.name]))


def typed(text: str) -> str:
    """Markdown in which every strategy is code, a pattern and a single name alike."""
    names = sorted(strategies.names(), key=len, reverse=True)
    return re.sub(rf"`[^`]*`|(?<![\w*-])(?:{'|'.join(names)})(?![\w*-])", lambda m: f"`{m[0].strip('`')}`", text)


def searched(failure: catalogue.Failure) -> str:
    """The words by which the entrance finds a failure: its name, its title, its claims and its records."""
    texts = (
        failure.name,
        failure.title,
        failure.first_seen,
        *(claim.text for claim in failure.claims.values()),
        *failure.records,
    )
    return " ".join(dict.fromkeys(" ".join(texts).lower().split()))


def failure(failure: catalogue.Failure) -> FailurePage:
    """The page of one failure."""
    story = {name: relinked(failure, text) for name, text in stories.sections(failure).items()}
    sees = "\n\n".join(filter(None, stories.symptom_and_error(story)))
    story.pop("")
    record, _ = stories.split(story.pop("Record"))
    cause, run = story.pop("Cause"), story.pop("What is run")
    trainers = sorted({variant.trainer for variant in failure.variants if variant.trainer and variant.broken})
    stacks = dict.fromkeys((measured.shown_on(failure), TODAY))
    claims = failure.claims.values()
    return FailurePage(
        name=failure.name,
        title=failure.title,
        first_seen=failure.first_seen,
        trainers=", ".join(f"`{trainer}`" for trainer in trainers),
        sees=sees,
        today=typed(symptoms.happens_today(failure)),
        errors={name: pattern for name, pattern in failure.errors.items() if name not in failure.also_raises},
        cause=cause,
        since=failure.since,
        until=failure.until,
        grids=[facts.grid(failure, stack) for stack in stacks],
        others=others(failure),
        symbols=SYMBOLS,
        strips=strips(failure),
        remedies=claim_lines(failure, [each for each in claims if each.kind in catalogue.REMEDIES]),
        also_claimed=claim_lines(failure, [each for each in claims if each.kind not in catalogue.REMEDIES]),
        beside="\n\n".join(f"## {name}\n\n{text}" for name, text in story.items()),
        commands=(f"faultline show {failure.name}", *report_failure.commands(failure)),
        run=run,
        record=record,
        files=[*downloads_of(failure)],
    )


def relinked(failure: catalogue.Failure, text: str) -> str:
    return docs.relinked(text, REPROS / failure.name, f"failures/{failure.name}.md")


def others(failure: catalogue.Failure) -> list[str]:
    """The errors of today's matrix that are another failure's, a sentence for each."""
    under: dict[Did, list[str]] = {}
    grid = facts.grid(failure, TODAY)
    for line in grid.lines:
        for name, did in zip(grid.strategies, line.cells, strict=True):
            if did and did.outcome in measured.ERRORS and did.signature in failure.also_raises:
                under.setdefault(did, []).append(name)
    sentences = []
    for did, names in under.items():
        with_it = [each for each in failures().values() if did.signature in {*each.errors} - {*each.also_raises}]
        whose = [each.name for each in with_it if not each.recognition.of(did.signature).same_as]
        whole = f"`{did}` under {typed(as_code(group_strategies(names, strategies.names())))} is not this failure"
        links = " or ".join(f"[{name}]({name}.md)" for name in whose if name != failure.name)
        sentences.append(f"{whole}, but {links}." if links else f"{whole}.")
    return sentences


def strips(failure: catalogue.Failure) -> dict[str, list[Box]]:
    """A box for each stack on which broken cells were run: the months from the oldest to today, then all others."""
    rows: dict[str, list[Box]] = {}
    most = max((each.count for each in facts.on_stacks(failure).values()), default=0)
    for each in facts.on_stacks(failure).values():
        stack = facts.stacks()[each.stack]
        kind = "none" if not each.shown else "some" if each.clear else "all"
        text = f"{len(each.shown)} of {each.count}"
        if each.count < most:
            kind, text = f"{kind} part", f"{text} run"
        title = stack.title if stack.kind == "pinned" else stack.month[:7] or TODAY
        row = "Other stacks" if stack.kind == "pinned" else "Month by month"
        rows.setdefault(row, []).append(Box(each.stack, title, text, kind))
    return {row: boxes[::-1] if row == "Month by month" else boxes for row, boxes in rows.items()}


def claim_lines(failure: catalogue.Failure, claims: Iterable[catalogue.Claim]) -> list[ClaimLine]:
    """The verdict on each of these claims, the verified ones first."""
    lines = []
    for claim in claims:
        verdict = remedies.recorded_verdict(failure, claim)
        total = len(verdict.supporting) + len(verdict.against)
        there = remedies.tested_on(failure, claim)
        observed = measured.outcomes(failure, claim.swap.get("stack", there))
        against = remedies.describe_outcomes(failure, verdict, observed) if verdict.word != "verified" and total else []
        numbers = f"{len(verdict.supporting)} of {count(total, 'cell')}" if total else "no cell could tell"
        on = "" if there == TODAY else f" on {there}"
        text = "; ".join((f"{numbers}{on}", *(each.replace("`", "") for each in against)))
        lines.append(ClaimLine(verdict.word, html(claim_in_words(claim)), text, claim.source, short_link(claim.source)))
    return sorted(lines, key=lambda line: ORDER.index(line.word))


def stack(stack: facts.Version) -> StackPage:
    """The page of one stack."""
    shown, clear = [], {}
    for each in failures().values():
        there = facts.on_stacks(each).get(stack.name)
        if there and there.shown:
            under = typed(as_code(group_strategies((cell.strategy for cell in there.shown), strategies.names())))
            shown.append(FailureLine(each.name, each.title, under, f"{len(there.shown)} of {there.count}"))
        elif there:
            clear[each.name] = each.title
    intro = {
        TODAY: f"The stack that Faultline pins, as of {facts.pinned_day()}, on which everything is measured.",
        "month": f"The newest releases of everything as of {stack.month}.",
        "pinned": "A stack that failures were reported on, or that an upgrade was tried with.",
    }[stack.kind]
    newest = next(each.name for each in facts.stacks().values() if each.kind == "month")
    other = newest if stack.kind == TODAY else TODAY
    return StackPage(stack.name, stack.title, intro, other, stack.versions, shown, clear)


def html(text: str) -> str:
    """Markdown of one line as HTML."""
    return MARKDOWN.renderInline(text)
