"""The folders of findings: the spec of each, what was seen, and what a person made of it."""

import json
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from faultline import strategies
from faultline.base.errors import UsageError
from faultline.base.packages import STACK
from faultline.base.paths import ROOT, content
from faultline.base.traces import shorten_paths
from faultline.catalogue.outcomes import Did, Outcome
from faultline.runs.results import Result
from lab.explore import case as cases
from lab.explore.case import Case
from lab.explore.fingerprint import kind, role
from lab.explore.known import Explains
from lab.explore.shrinking import Shrunk

FILE, ISSUE = "repro.py", "issue.md"
FINDINGS = ROOT / "findings"
SPEC, SEEN, ABOUT = "spec.json", "seen.json", "finding.toml"
UNREAD = "not looked into"
STATUSES = (UNREAD, "new", "known upstream", "known failure", "documented refusal", "our fault", "not reproduced")


@dataclass(frozen=True)
class Seen:
    """What a finding's program does: under its strategy, with `kind` in words, and elsewhere, by strategy.

    `steady` is in how many runs of the same case it did so, `stack` the versions of the packages under test.
    """

    kind: str
    outcome: str
    signature: str
    detail: str
    where: Mapping[str, str]
    stack: Mapping[str, str]
    steady: int = 1


@dataclass(frozen=True)
class About:
    """What a person knows of a finding.

    `cause` is where it happens in upstream's source, `links` are reports of it or of what is like it, `searched` is
    what was searched for them, and `nearest` says how the nearest of a new finding differs. `failure` is that of the
    catalogue which it is, or which it has become; `since` is what a bisect came to.
    """

    title: str
    status: str = UNREAD
    cause: str = ""
    failure: str = ""
    since: str = ""
    links: tuple[str, ...] = ()
    searched: tuple[str, ...] = ()
    nearest: str = ""


@dataclass(frozen=True)
class Finding:
    """A finding, and the folder that it is kept in."""

    folder: Path
    case: Case
    seen: Seen
    about: About

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def package(self) -> str:
        """The package at fault: the first that the cause names, or else that of the trainer or of the engine."""
        if match := re.search(rf"\b({'|'.join(STACK)})\b", self.about.cause, re.IGNORECASE):
            return match[1].lower()
        program = self.case.program
        of_engine = strategies.package(self.case.strategy)
        return "trl" if program.in_trl else "transformers" if program.trainer else of_engine

    @property
    def explains(self) -> Explains:
        """The cases that it explains: its features, under the strategies that do the same."""
        did = self.seen.where.get(self.case.strategy)
        alike = tuple(name for name, other in self.seen.where.items() if other == did) or (self.case.strategy,)
        error = self.seen.detail if self.seen.outcome == Outcome.RAISES else ""
        return Explains(self.name, self.case.program.chosen, alike, self.case.device, error)


def every(folder: Path = FINDINGS) -> list[Finding]:
    """All findings that are kept, by name."""
    return [read(file.parent) for file in sorted(folder.glob(f"*/{SPEC}"))]


def by_name(names: Sequence[str]) -> list[Finding]:
    """Findings by name, or by the path of a folder elsewhere; all that are kept if none is given.

    Raises UsageError for a name that there isn't.
    """
    known = {finding.name: finding for finding in every()}
    elsewhere = {name: read(Path(name)) for name in names if os.sep in name}
    if unknown := [name for name in names if name not in known | elsewhere]:
        raise UsageError(f"there is no finding {unknown[0]} in findings/")
    return [(known | elsewhere)[name] for name in names or known]


def read(folder: Path) -> Finding:
    """One finding; raises UsageError for a folder that isn't one."""
    try:
        seen = msgspec.json.decode(content(folder / SEEN), type=Seen)
        about = msgspec.convert(tomllib.loads(content(folder / ABOUT).decode()), About)
        case = cases.parse(content(folder / SPEC).decode())
    except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors, as is tomllib's
        raise UsageError(f"{folder} is not the folder of a finding: {error}") from None
    if about.status not in STATUSES:
        raise UsageError(f"{folder / ABOUT}: the status is one of {', '.join(STATUSES)}")
    return Finding(folder, case, seen, about)


def write(folder: Path, shrunk: Shrunk, steady: int) -> Finding:
    """Write what a search came down to as the folder of a finding, which nobody has looked at."""
    about = About(f"{shrunk.case.words}: {kind(shrunk.result)}")
    spec = json.dumps(shrunk.case.as_json(), indent=1) + "\n"
    home = free(folder, name(shrunk), spec)
    finding = Finding(home, shrunk.case, seen_of(shrunk.result, shrunk.where, steady), about)
    home.mkdir(parents=True, exist_ok=True)
    (home / SPEC).write_text(spec)
    write_seen(home, finding.seen)
    (home / ABOUT).write_text(f"title = {json.dumps(about.title)}\nstatus = {json.dumps(about.status)}\n")
    return finding


def free(folder: Path, name: str, spec: str) -> Path:
    """The folder of that name, or of that name with a number, which nothing else than this spec has."""
    home, number = folder / name, 2
    while home.exists() and (home / SPEC).read_text() != spec:
        home, number = folder / f"{name}_{number}", number + 1
    return home


def seen_of(result: Result, where: Mapping[str, Did], steady: int) -> Seen:
    """What was seen of a case, and of its program by strategy."""
    words = {strategy: str(did) for strategy, did in where.items()}
    return Seen(
        kind(result), result.outcome, result.signature, shorten_paths(result.detail), words, dict(result.stack), steady
    )


def write_since(folder: Path, since: str) -> None:
    """Write since when a finding shows into its folder, in place of what was there."""
    import tomlkit  # which takes time, and only a bisect needs it

    about = tomlkit.parse((folder / ABOUT).read_text())
    about["since"] = since
    (folder / ABOUT).write_text(tomlkit.dumps(about))


def write_seen(folder: Path, what: Seen) -> None:
    """Write what was seen into the folder of a finding."""
    (folder / SEEN).write_text(json.dumps(asdict(what), indent=1) + "\n")


def name(shrunk: Shrunk) -> str:
    """A folder's name: the family of the strategy, the features and their values, how it shows and where first."""
    features = [
        f"{feature.rpartition('.')[2]} {'' if value is True else value}"
        for feature, value in shrunk.case.program.chosen
    ]
    parts = [strategies.family_name(shrunk.case.strategy), *features, kind(shrunk.result), role(shrunk.result)]
    return re.sub(r"[^a-z0-9]+", "_", "_".join(parts).lower()).strip("_")


def explaining(folder: Path = FINDINGS) -> Sequence[Explains]:
    """What the findings that are kept explain."""
    return [each.explains for each in every(folder) if each.about.status != "not reproduced"]
