"""What explorations came to, in numbers that are kept, and the page of the findings, the gravest first."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from faultline.base.markdown import headed, put, row
from faultline.base.paths import content
from faultline.base.text import count
from faultline.catalogue.outcomes import Outcome
from lab.explore import findings
from lab.explore.findings import STATUSES, Finding
from lab.explore.relation_checks import Tally
from lab.explore.search import Search, Stage
from lab.programs.fault import KINDS
from lab.programs.settings import SETTINGS

README = "README.md"
PAGE = findings.FINDINGS / README
EXPLORATIONS = findings.FINDINGS / "explorations.jsonl"
NUMBERS = "numbers.json"  # in the folder of an exploration
RAISING = (Outcome.HANGS, Outcome.CRASHES, Outcome.RAISES)


@dataclass(frozen=True)
class Numbers:
    """Programs, cases that ran, that differ, and that are known by what they do or once they are small; findings;
    planted faults and relations, and how many were seen, or held; and the planted ones by kind and by how they were
    seen, with an empty word for those that weren't. `small` is what the cases came down to that weren't known,
    `by_relation` what became of each relation."""

    seed: int
    minutes: float
    programs: int
    cases: int
    differ: int
    known: int
    findings: int
    silent: int
    planted: int
    planted_seen: int
    related: int
    held: int
    stack: str
    by_kind: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    small: int | None = None
    by_relation: Mapping[str, Tally] = field(default_factory=dict)


def came_to(folder: Path) -> Numbers:
    """What the exploration of a folder came to; raises OSError or ValueError where it has no such numbers."""
    return msgspec.json.decode(content(folder / NUMBERS), type=Numbers)  # whose errors are ValueErrors


def numbers_of(search: Search, seed: int, minutes: float, stack: str) -> Numbers:
    """What a search came to so far."""
    funnel, tallies = search.funnel, search.checks.tallies
    return Numbers(
        seed,
        round(minutes, 1),
        programs=funnel[Stage.PROGRAMS],
        cases=funnel[Stage.RUN],
        differ=funnel[Stage.DIFFER],
        known=funnel[Stage.KNOWN_BY_RESULT] + funnel[Stage.KNOWN_ONCE_SMALL],
        findings=len(search.findings),
        silent=search.silent,
        planted=search.planted.total(),
        planted_seen=search.planted_seen,
        related=sum(tally.pairs for tally in tallies.values()),
        held=sum(tally.held for tally in tallies.values()),
        stack=stack,
        by_kind=search.planted_by_kind,
        small=search.small,
        by_relation=tallies,
    )


def grave(finding: Finding) -> tuple[int, int, int, bool, int, str]:
    """First those that nobody looked into, and new ones. Then what is silent, hangs, and raises; default settings,
    trainers, and few features.
    """
    outcome, program = finding.seen.outcome, finding.case.program
    loud = 1 + RAISING.index(Outcome(outcome)) if outcome in RAISING else 0
    rare = sum(name in SETTINGS for name in program.features)
    return STATUSES.index(finding.about.status), loud, rare, not program.trainer, len(program.features), finding.name


def page(remaining: Iterable[Finding], explorations: Iterable[Numbers]) -> str:
    """The measured part of the page of the findings in a folder."""
    every, numbers = sorted(remaining, key=grave), [*explorations]
    by_status = Counter(each.about.status for each in every)
    unread = f", {by_status[findings.UNREAD]} {findings.UNREAD}" if by_status[findings.UNREAD] else ""
    parts = [
        f"{count(len(every), 'finding')}, {by_status['new']} of them new{unread}.",
        "\n".join(
            headed(
                ("finding", "program", "under", "what it does", "in runs", "seen with", "files"),
                map(line, every),
            )
        ),
        "\n".join(funnel(numbers)),
        "\n".join(planted(numbers)),
        "\n".join(related(numbers)),
    ]
    return "\n\n".join(part for part in parts if part)


def line(finding: Finding) -> str:
    """One finding as a row."""
    about, seen = finding.about, finding.seen
    names = (findings.FILE, findings.ISSUE)
    files = [f"[{name}]({finding.name}/{name})" for name in names if (finding.folder / name).exists()]
    became = f", [{about.failure}](../repros/{about.failure}/README.md)" if about.failure else ""
    return row(
        f"**{about.title}** ({about.status}{became})",
        finding.case.program.words,
        f"`{finding.case.strategy}`",
        seen.kind,
        str(seen.steady),
        f"{finding.package} {seen.stack.get(finding.package, '')}{about.since and f'; {about.since}'}",
        ", ".join(files) or "none",
    )


def funnel(explorations: list[Numbers]) -> list[str]:
    """What each exploration drew, ran and came down to."""
    names = ("seed", "minutes", "programs", "cases run", "differ", "known", "made small", "findings (silent)")
    rows = [
        row(
            str(each.seed),
            f"{each.minutes:g}",
            str(each.programs),
            str(each.cases),
            str(each.differ),
            str(each.known),
            "" if each.small is None else str(each.small),
            f"{each.findings} ({each.silent})",
            f"{each.planted_seen} of {each.planted}",
            f"{each.held} of {each.related}",
        )
        for each in explorations
    ]
    return headed((*names, "planted faults seen", "relations held"), [*rows, *_total(explorations)])


def _total(explorations: list[Numbers]) -> list[str]:
    """The sums of several explorations, as a row."""
    if len(explorations) < 2:
        return []

    def of(name: str) -> int:
        return sum(getattr(each, name) for each in explorations)

    sums = [str(of(name)) for name in ("programs", "cases", "differ", "known")]
    planted, related = f"{of('planted_seen')} of {of('planted')}", f"{of('held')} of {of('related')}"
    hours = f"{sum(each.minutes for each in explorations) / 60:.1f} hours"
    return [row("all", hours, *sums, "", f"{of('findings')} ({of('silent')})", planted, related)]


def planted(explorations: list[Numbers]) -> list[str]:
    """How many planted faults of each kind were seen, and as what, in the explorations that counted them so."""
    by_kind: dict[str, Counter[str]] = {}
    for each in explorations:
        for kind, seen in each.by_kind.items():
            by_kind.setdefault(kind, Counter()).update(seen)
    rows = [
        row(
            f"{kind}: {KINDS[kind].words}",
            f"{seen.total() - seen['']} of {seen.total()}",
            ", ".join(f"{number} {how}" for how, number in sorted(seen.items()) if how),
        )
        for kind, seen in sorted(by_kind.items())
    ]
    never = ", ".join(sorted(KINDS.keys() - by_kind.keys()))
    return (
        [*headed(("planted fault", "seen", "as"), rows), *(["", f"Not drawn: {never}."] if never else [])]
        if rows
        else []
    )


def related(explorations: list[Numbers]) -> list[str]:
    """How many pairs each relation held, and how many planted faults broke it, where explorations counted them so."""
    tallies = [each.by_relation for each in explorations if each.by_relation]
    rows = []
    for name in sorted({name for each in tallies for name in each}):
        of = [each[name] for each in tallies if name in each]
        held, pairs = sum(tally.held for tally in of), sum(tally.pairs for tally in of)
        seen, planted = sum(tally.seen for tally in of), sum(tally.planted for tally in of)
        rows.append(row(name, f"{held} of {pairs}", f"{seen} of {planted}"))
    return headed(("relation", "held", "broken by a planted fault"), rows) if rows else []


def write() -> str:
    """Write the page anew; gives the line that says so."""
    return put(PAGE, lambda: page(findings.every(), read()))


def read(file: Path = EXPLORATIONS) -> list[Numbers]:
    """The explorations that were added."""
    return [msgspec.json.decode(each, type=Numbers) for each in file.read_text().splitlines()] if file.exists() else []


def add(numbers: Numbers, file: Path = EXPLORATIONS) -> None:
    """Add an exploration, in the place of one from the same seed on the same stack."""
    same = (numbers.seed, numbers.stack)
    every = [*(each for each in read(file) if (each.seed, each.stack) != same), numbers]
    file.write_text("".join(json.dumps(msgspec.to_builtins(each)) + "\n" for each in every), encoding="utf-8")
