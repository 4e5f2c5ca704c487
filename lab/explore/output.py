"""What an exploration prints, and what remains of it: numbers, findings, what was set aside, and a page."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict

from faultline.base.text import count, one_line
from faultline.runs.storage import RunFolder
from lab.explore import findings, fingerprint, overview
from lab.explore.findings import Finding
from lab.explore.overview import Numbers
from lab.explore.search import Cluster, Search, Stage

FINDINGS, UNSTEADY = "findings", "unsteady"  # in the folder of an exploration
SHOWN = 300  # letters of a detail


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
    home, came_to = folder.path / FINDINGS, overview.came_to(folder.path)
    home.mkdir(exist_ok=True)
    page = overview.page(explored, [came_to])
    (home / overview.README).write_text(f"# Findings of an exploration\n\n{page}\n", encoding="utf-8")
    print(f"results: {folder.shown}/{FINDINGS}/{overview.README}")


def keep(folder: RunFolder, search: Search, came_to: Numbers) -> list[Finding]:
    """Write the numbers, each finding as a folder beside the results, and what was known of the other differences."""
    write_numbers(folder, came_to)
    for kind in (FINDINGS, UNSTEADY):  # what was found may have turned out to be unsteady
        shutil.rmtree(folder.path / kind, ignore_errors=True)
    made = [write(folder, FINDINGS, search, each) for each in search.findings]
    for each in search.unsteady:
        write(folder, UNSTEADY, search, each)
    write_lines(folder, "broken.jsonl", [each.as_json() for each in search.broken])
    aside = [{"spec": case.as_json(), "known": [why.kind, why.name]} for case, why in search.known.items()]
    write_lines(folder, "known.jsonl", aside)
    return made


def write_numbers(folder: RunFolder, came_to: Numbers) -> None:
    """Write what an exploration came to so far, and how long it took."""
    (folder.path / overview.NUMBERS).write_text(json.dumps(asdict(came_to)))


def write_lines(folder: RunFolder, name: str, values: Sequence[object]) -> None:
    """Write a file of the folder, a line of JSON for each value."""
    (folder.path / name).write_text("".join(f"{json.dumps(value)}\n" for value in values))


def write(folder: RunFolder, kind: str, search: Search, cluster: Cluster) -> Finding:
    """A finding, as it was written beside the results."""
    return findings.write(folder.path / kind, cluster.shrunk, 1 + search.again[cluster.shrunk.case.cell, True])


def show(search: Search, explored: Sequence[Finding]) -> None:
    """Print what was found and the funnel."""
    pairs = zip(search.findings, explored, strict=True)
    for cluster, finding in sorted(pairs, key=lambda pair: overview.grave(pair[1])):
        print("\n".join(lines(cluster, finding)))
    for stage in Stage:
        print(f"{stage}: {search.funnel[stage]}")
    print(f"findings: {len(explored)}, of them silent: {search.silent}")
    for name, words in search.changed.items():
        print(f"  {name}: {words}")
    for each in search.unsteady:
        same, runs = search.again[each.shrunk.case.cell, True] + 1, search.runs(each)
        print(f"  unsteady: {each.shrunk.case.words}: {fingerprint.kind(each.shrunk.result)} in {same} of {runs} runs")
    tallies = search.checks.tallies.values()
    print(f"relations: {sum(tally.pairs for tally in tallies)}, held {sum(tally.held for tally in tallies)}")
    for broken in search.broken:
        print(f"  broken: {broken.question.words}: {broken.wrong} in {broken.steady} of {broken.runs} runs")
    for words, did in search.once.items():
        print(f"  once: {words}: {did}")
    print(f"cases with a planted fault: {search.planted.total()}, seen {search.planted_seen}")
    for fault, seen in search.planted_by_kind.items():
        missed = seen.get("", 0)
        print(f"  {fault}: {sum(seen.values()) - missed} of {sum(seen.values())}{', MISSED SOME' if missed else ''}")
    asked, broken_by = sum(tally.planted for tally in tallies), sum(tally.seen for tally in tallies)
    print(f"of them held by a relation: {asked}, broken by the fault {broken_by}")


def lines(cluster: Cluster, finding: Finding) -> list[str]:
    """One finding, in lines."""
    shrunk = cluster.shrunk
    text = [f"{finding.seen.kind}: {shrunk.case.words}", f"  {one_line(finding.seen.detail)[:SHOWN]}"]
    if place := fingerprint.role(shrunk.result):
        text.append(f"  first differs: {place}")
    if elsewhere := [f"{name} {did}" for name, did in finding.seen.where.items() if name != shrunk.case.strategy]:
        text.append(f"  elsewhere: {', '.join(elsewhere)}")
    return [*text, f"  {finding.name}: {count(cluster.cases, 'case')}, the same in {count(finding.seen.steady, 'run')}"]
