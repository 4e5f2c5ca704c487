"""An exploration at the terminal: what was found, the gravest first, and the funnel."""

from collections.abc import Sequence

from faultline.base.text import count, one_line
from lab.explore import kind as kinds
from lab.explore import overview
from lab.explore.findings import Finding
from lab.explore.search import Cluster, Search, Stage

SHOWN = 300  # letters of a detail


def show(search: Search, findings: Sequence[Finding]) -> None:
    """Print what was found and the funnel."""
    pairs = zip(search.findings, findings, strict=True)
    for cluster, finding in sorted(pairs, key=lambda pair: overview.grave(pair[1])):
        print("\n".join(lines(cluster, finding)))
    for stage in Stage:
        print(f"{stage}: {search.funnel[stage]}")
    print(f"findings: {len(findings)}, of them silent: {search.silent}")
    for name, words in search.changed.items():
        print(f"  {name}: {words}")
    for each in search.unsteady:
        same, runs = search.again[each.shrunk.case.cell, True] + 1, search.runs(each)
        print(f"  unsteady: {each.shrunk.case.words}: {kinds.kind(each.shrunk.result)} in {same} of {runs} runs")
    tallies = search.holding.tallies.values()
    print(f"relations: {sum(tally.pairs for tally in tallies)}, held {sum(tally.held for tally in tallies)}")
    for broken in search.broken:
        print(f"  broken: {broken.question.words}: {broken.wrong} in {broken.steady} of {broken.runs} runs")
    for words, did in search.once.items():
        print(f"  once: {words}: {did}")
    print(f"cases with a planted fault: {search.planted.total()}, seen {search.planted_seen}")
    for kind, seen in search.planted_by_kind.items():
        missed = seen.get("", 0)
        print(f"  {kind}: {sum(seen.values()) - missed} of {sum(seen.values())}{', MISSED SOME' if missed else ''}")
    asked, broken_by = sum(tally.planted for tally in tallies), sum(tally.seen for tally in tallies)
    print(f"of them held by a relation: {asked}, broken by the fault {broken_by}")


def lines(cluster: Cluster, finding: Finding) -> list[str]:
    """One finding, in lines."""
    shrunk = cluster.shrunk
    text = [f"{finding.seen.kind}: {shrunk.case.words}", f"  {one_line(finding.seen.detail)[:SHOWN]}"]
    if place := kinds.role(shrunk.result):
        text.append(f"  first differs: {place}")
    if elsewhere := [f"{name} {did}" for name, did in finding.seen.where.items() if name != shrunk.case.strategy]:
        text.append(f"  elsewhere: {', '.join(elsewhere)}")
    return [*text, f"  {finding.name}: {count(cluster.cases, 'case')}, the same in {count(finding.seen.steady, 'run')}"]
