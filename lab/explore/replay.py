"""The findings that are kept, on the stack of today: what they do now, beside what was seen."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.base.text import count
from faultline.cells.cell import Cell
from faultline.runs import measurement, storage
from faultline.runs.driver import Batch
from faultline.runs.progress import UNLIKE_ALONE
from faultline.runs.results import Result
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
