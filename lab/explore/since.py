"""Since which release of a package a finding shows."""

from packaging.version import Version

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNDECIDED, Unavailable, UsageError, unknown
from faultline.base.packages import NEEDED
from faultline.catalogue.outcomes import Outcome
from faultline.releases.bisect import within
from faultline.releases.bisection import Boundary, boundary
from faultline.runs import measurement, storage
from faultline.runs.driver import Batch
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder
from faultline.stacks import environments, index, requests
from faultline.stacks.index import Release
from lab.explore import findings, overview
from lab.explore.case import Runner
from lab.explore.replay import KIND


def run(names: tuple[str, ...], package: str, workers: int = 0) -> int:
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
