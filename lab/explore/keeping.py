"""What remains of an exploration in its folder: numbers, findings, what was set aside, and a page."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict

from faultline.runs.storage import RunFolder
from lab.explore import findings, numbers, overview
from lab.explore.findings import Finding
from lab.explore.numbers import Numbers
from lab.explore.search import Cluster, Search

FINDINGS, UNSTEADY = "findings", "unsteady"  # in the folder of an exploration


def publish(folder: RunFolder, explored: Sequence[Finding], here: bool) -> None:
    """Write the file of each finding, which runs on the stack that is installed `here`, and the exploration's page."""
    if here:
        from lab.explore import publishing  # which imports torch: an environment of a fleet has none

        for finding in explored:
            print(publishing.export(finding)[0], flush=True)
    elif explored:
        print("no finding has a file: they can be written on the stack that is installed")
    write_page(folder, explored)


def write_page(folder: RunFolder, explored: Sequence[Finding]) -> None:
    """Write the page of the exploration, as far as it has come."""
    home, came_to = folder.path / FINDINGS, numbers.read(folder.path)
    home.mkdir(exist_ok=True)
    page = overview.page(explored, [came_to])
    (home / overview.README).write_text(f"# Findings of an exploration\n\n{page}\n", encoding="utf-8")
    print(f"results: {folder.shown}/{FINDINGS}/{overview.README}")


def keep(folder: RunFolder, search: Search, came_to: Numbers) -> list[Finding]:
    """Write the numbers, each finding as a folder beside the results, and what was known of the other differences."""
    write_numbers(folder, came_to)
    for kind in (FINDINGS, UNSTEADY):  # what was found may have turned out to be unsteady
        shutil.rmtree(folder.path / kind, ignore_errors=True)
    made = [written(folder, FINDINGS, search, each) for each in search.findings]
    for each in search.unsteady:
        written(folder, UNSTEADY, search, each)
    write_lines(folder, "broken.jsonl", [each.as_json() for each in search.broken])
    aside = [{"spec": case.as_json(), "known": [why.kind, why.name]} for case, why in search.known.items()]
    write_lines(folder, "known.jsonl", aside)
    return made


def write_numbers(folder: RunFolder, came_to: Numbers) -> None:
    """Write what an exploration came to so far, and how long it took."""
    (folder.path / numbers.FILE).write_text(json.dumps(asdict(came_to)))


def write_lines(folder: RunFolder, name: str, values: Sequence[object]) -> None:
    """Write a file of the folder, a line of JSON for each value."""
    (folder.path / name).write_text("".join(f"{json.dumps(value)}\n" for value in values))


def written(folder: RunFolder, kind: str, search: Search, cluster: Cluster) -> Finding:
    """A finding, as it was written beside the results."""
    return findings.write(folder.path / kind, cluster.shrunk, 1 + search.again[cluster.shrunk.case.cell, True])
