"""An exploration at the terminal: what was found, the gravest first, and the funnel."""

from faultline.base.text import count, one_line
from faultline.explore import kind as kinds
from faultline.explore.search import Found, Search

SHOWN = 300  # letters of a detail


def show(search: Search) -> None:
    """Print what was found and the funnel."""
    for each in sorted(search.found.values(), key=rank):
        shrunk = each.shrunk
        print(f"{kinds.kind(shrunk.result)}: {shrunk.case.words}  ({count(each.cases, 'case')})")
        print(f"  {one_line(shrunk.result.detail)[:SHOWN]}")
        if place := kinds.role(shrunk.result):
            print(f"  first differs: {place}")
        print(f"  elsewhere: {', '.join(f'{name} {did}' for name, did in shrunk.where.items())}")
    for name, number in search.funnel.items():
        print(f"{name}: {number}")
    print(f"findings: {len(search.found)}")
    caught = sum(number for (_, seen), number in search.planted.items() if seen)
    missed = {kind: number for (kind, seen), number in search.planted.items() if not seen}
    print(f"planted faults: {search.planted.total()}, seen {caught}")
    for kind, number in sorted(missed.items()):
        print(f"  missed: {kind}, {number}")


def rank(found: Found) -> tuple[bool, bool, int, int]:
    """Silent before hanging before raising; few features first, then what many cases show."""
    result = found.shrunk.result
    return not kinds.silent(result), result.outcome == "raises", len(found.shrunk.case.program.chosen), -found.cases
