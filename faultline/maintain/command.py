"""What is made from a run: expected.toml, READMEs and durations."""

from functools import partial

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError
from faultline.base.markdown import put
from faultline.base.packages import versions
from faultline.base.paths import REPROS, ROOT
from faultline.base.text import plain
from faultline.catalogue.loading import failure_named, failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells import expected
from faultline.cells.selection import Selection, select
from faultline.maintain import bless as blessing
from faultline.maintain.readmes import measured_part, noise, rewrite
from faultline.runs import estimates, results, storage


def bless(run: str, only: str, check: bool) -> int:
    """Rewrite expected.toml of a run's failures, or of one, and print the difference; `check` only prints it."""
    folder = storage.undisturbed(run)
    if only:
        only = failure_named(only).name
    entries = [entry for entry in storage.entries(folder) if only in (entry.cell.failure, "")]
    blessing.refuse(entries, folder.info().finished)
    storage.same_stack(folder)
    changed = False
    for name in sorted({entry.cell.failure for entry in entries} & set(failures())):
        failure = failures()[name]
        file = REPROS / name / "expected.toml"
        observed = {cell: did for cell, did in results.outcomes(entries).items() if cell.failure == name}
        cells = select(failures(), Selection(failure=(name,), device=next(iter(observed)).device))
        reasons = {each.cell: plain(each.detail) for each in entries if each.outcome == Outcome.IMPOSSIBLE}
        rules = blessing.bless(failure, observed, versions(), expected.load(file), cells, reasons=reasons)
        old = file.read_text(encoding="utf-8") if file.exists() else ""
        text = expected.to_toml(rules)
        difference = blessing.difference(old, text, file)
        if difference:
            changed = True
            print(plain(difference), end="")  # a run of somebody else's has their words
            if not check:
                file.write_text(text, encoding="utf-8")
    if not changed:
        print("nothing to change: the rules expect what the run did")
    return EXIT_UNEXPECTED if changed and check else EXIT_AS_EXPECTED


def readmes(run: str) -> int:
    """Rewrite the measured part of each failure's README from a run."""
    folder = storage.undisturbed(run)
    entries = storage.entries(folder)
    for failure in failures().values():
        default = {cell.id for cell in select(failures(), Selection(failure=(failure.name,)))}
        have = {entry.cell.id for entry in entries if entry.cell.failure == failure.name}
        if have and default - have:
            raise UsageError(
                f"{folder.path.name} lacks {len(default - have)} of {failure.name}'s cells: run all of them"
            )
        if have:
            print(put(REPROS / failure.name / "README.md", partial(measured_part, failure, entries)))
    if not {cell.id for cell in select(failures(), Selection())} - {entry.cell.id for entry in entries}:
        print(put(ROOT / "docs" / "trust.md", partial(noise, entries)))
    print(rewrite())
    return EXIT_AS_EXPECTED


def durations(run: str) -> int:
    """Record how long cells took: later shards are of equal length, and later runs say how long they take."""
    estimates.record(storage.entries(storage.undisturbed(run)))
    return EXIT_AS_EXPECTED
