"""What the findings that are kept do on the stack of today, and since which release of a package they show."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from packaging.version import Version

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNDECIDED, EXIT_UNEXPECTED, Unavailable, UsageError, unknown
from faultline.base.packages import NEEDED
from faultline.base.text import count
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.releases.bisect import within
from faultline.releases.bisection import Boundary, boundary
from faultline.runs import measurement, storage
from faultline.runs.driver import Batch
from faultline.runs.progress import UNLIKE_ALONE
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder
from faultline.stacks import environments, index, requests
from faultline.stacks.index import Release
from lab.explore import findings, overview
from lab.explore.case import Case, Runner
from lab.explore.findings import Finding

KIND = "findings"


@dataclass(frozen=True)
class Request:
    """Which findings to replay (none: all), on how many workers, and whether to write what they do now."""

    names: tuple[str, ...] = ()
    workers: int = 0
    write: bool = False


def run(request: Request) -> int:
    """Replay findings and say what changed: exit code 1 if anything did, and isn't written."""
    return EXIT_UNEXPECTED if replay(request) and not request.write else EXIT_AS_EXPECTED


def replay(request: Request) -> Sequence[str]:
    """Replay findings; gives the names of those that do anything otherwise now."""
    if not (chosen := findings.by_name(request.names)):
        print("there is no finding in findings/")
        return ()
    runner, measured = Runner(), list[Result]()
    folder = storage.new_run(kind=KIND)
    cells = [runner.add(case) for finding in chosen for case in places(finding)]
    batch = Batch(cells, folder=folder, run=runner)
    measurement.measure([batch], request.workers, wrong=UNLIKE_ALONE, on_result=measured.append)
    results = {entry.cell: entry for entry in measured}
    changed = []
    for finding in chosen:
        different = changes(finding, results)
        changed += [finding.name] if different else []
        print(
            "\n".join([f"{finding.name}: {finding.about.status}, {'changed' if different else 'as seen'}", *different])
        )
        if request.write:
            where = {case.strategy: results[case.cell].did for case in places(finding)}
            now = findings.seen_of(results[finding.case.cell], where, finding.seen.steady)
            findings.write_seen(finding.folder, now)
    if request.write:
        print(overview.write())
    print(f"{count(len(chosen), 'finding')} replayed, {len(changed)} changed; results: {folder.shown}")
    return changed


def places(finding: Finding) -> Sequence[Case]:
    """A finding's program under every strategy in which it was seen."""
    return [replace(finding.case, strategy=name) for name in finding.seen.where]


def changes(finding: Finding, results: Mapping[Cell, Result]) -> list[str]:
    """What a finding's program does otherwise now, in lines."""
    now = [(case.strategy, str(results[case.cell].did)) for case in places(finding)]
    return [
        f"  {strategy}: {finding.seen.where[strategy]} before, {did} now"
        for strategy, did in now
        if did != finding.seen.where[strategy]
    ]


def bisect(names: tuple[str, ...], package: str, workers: int = 0) -> int:
    """Bisect the releases of a package up to the one it was seen on, beside what is installed of the others, and print
    the one that began it.

    Exit code 3 where no release could be named.
    """
    if package not in NEEDED:
        raise unknown("package", package, NEEDED)
    if len(names) != 1:
        raise UsageError("a bisect is about one finding: name it")
    [finding] = findings.by_name(names)
    seen_on = Version(finding.seen.stack[package]).public
    releases = within(package, index.releases(package), "", seen_on)
    runner, folder = Runner(), storage.new_run(kind=KIND)
    cell, seen = runner.add(finding.case), finding.seen.where[finding.case.strategy]

    def look(place: int) -> bool | None:
        """Whether a release does what was seen; None where it does something else again, or nothing."""
        pin = f"{package}=={releases[place].version}"
        try:
            stack = environments.ready(requests.parse(pin))
            part, results = RunFolder(folder.path / pin), list[Result]()
            part.path.mkdir()
            part.describe(kind=KIND)
            measurement.measure([Batch([cell], stack, part, run=runner)], workers, on_result=results.append)
        except Unavailable as error:
            print(f"{pin}: {error.what}{error}", flush=True)
            return None
        did = results[0].did
        print(f"{pin}: {did}", flush=True)
        return True if str(did) == seen else False if results[0].outcome == Outcome.TRAINS else None

    edge = boundary(len(releases), look)
    print(answer(package, releases, edge))
    if words := since(package, releases, edge):
        findings.write_since(finding.folder, words)
        print(overview.write())
    return EXIT_AS_EXPECTED if edge.complete else EXIT_UNDECIDED


def since(package: str, releases: list[Release], edge: Boundary) -> str:
    """Since when it shows, in few words; empty where that isn't known."""
    if edge.after is None:
        return ""
    first = releases[edge.after].version
    return f"since {package} {first}" if edge.before is not None else f"in every {package} from {first} on"


def answer(package: str, releases: list[Release], edge: Boundary) -> str:
    """What the search came to, in a line."""
    if edge.after is None:
        return f"the newest {package} doesn't show it" if edge.before is not None else f"no {package} could be tried"
    if edge.before is None:
        return f"every {package} that could be tried shows it, {releases[edge.after]} the oldest"
    return f"introduced by {package} {releases[edge.after]}: {releases[edge.before]} doesn't show it"
