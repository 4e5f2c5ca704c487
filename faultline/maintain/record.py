"""Recording: what cells did in runs becomes observations, the errors with their texts."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.base.packages import TODAY, stack_name
from faultline.base.paths import real
from faultline.base.text import count
from faultline.base.traces import shorten_paths
from faultline.catalogue import Failure
from faultline.catalogue.loading import failures
from faultline.catalogue.recognition import meets_any
from faultline.cells import on_gpus as gpu_store
from faultline.cells.cell import Cell
from faultline.cells.finding import Finding
from faultline.maintain import on_gpus
from faultline.observations import recording, store
from faultline.observations.matching import mechanism
from faultline.observations.measured import ERRORS
from faultline.observations.store import Divergence, MeasuredStack, Observations, RecordedError, Row
from faultline.runs.results import Result
from faultline.runs.storage import Machine, RunFolder, entries

FIRST, LAST = 60, 60  # lines of a traceback that are recorded, where there are more


def run(names: Iterable[str]) -> int:
    """Add what cells did in runs to observations/: in folders of results/, or in files that somebody sent."""
    runs = [run for name in names for run in of(Path(name))]
    before = store.everything()
    after = merged(before, [result for _, results in runs for result in results])
    store.write(after)
    on_gpu = [row for machine, results in runs for row in on_gpus.rows_of(machine, results)]
    if on_gpu:
        known = on_gpus.merge_rows(gpu_store.everything(), on_gpu)
        touched = {machine.name for machine, _ in on_gpu}
        files = [gpu_store.write(each) for each in known if each.machine.name in touched]
        print(f"{count(len(on_gpu), 'cell')} on GPUs: {', '.join(file.name for file in files)}")
    new = after.errors.keys() - before.errors.keys()
    print(f"{len(after.errors)} errors on {len(after.stacks)} stacks, {len(new)} of them new")
    print(f"{len(after.divergences)} divergences on today's stack")
    return EXIT_AS_EXPECTED


def of(path: Path) -> Iterator[tuple[Machine, list[Result]]]:
    """Every run in a folder and those within it, with its machine; or of a file that somebody sent.

    Runs whose ranks were killed on purpose are left out.
    """
    if path.suffix == ".zip":
        yield on_gpus.read_received(path)
        return
    files = sorted(real(path).rglob("cells.jsonl"))
    if not files:
        raise UsageError("no results there: name folders of results/, or files that a run on GPUs made")
    for file in files:
        run = RunFolder(file.parent)
        if run.info().kind != "chaos":
            yield run.info().machine, entries(run)


def merged(before: Observations, results: Iterable[Result]) -> Observations:
    """Observations with results added.

    Of every cell its errors are recorded, and of broken cells whatever they do on the stacks of stacks/ but today's,
    which the rules have: there it is what is wrong with their numbers.
    """
    before = recording.with_current_names(before)
    stacks = {stack_name(stack.versions): stack for stack in before.stacks.values()}
    errors: dict[str, RecordedError] = {}
    divergences: dict[str, Divergence] = {}
    runs = []
    for result in results:
        cell, line = result.cell, stack_name(result.stack)
        if cell.failure not in failures() or not line:
            continue
        if line not in stacks:
            stacks[line] = recording.with_name(MeasuredStack("", result.stack))
        row = Row(cell.name, stacks[line].name, *result.did)
        if row.outcome in ERRORS:
            error = recorded(result, failures()[cell.failure])
            errors[error.id] = error if row.stack == TODAY else errors.get(error.id, error)
            row = row._replace(error=error.id)
        if row.stack == TODAY and cell.broken:
            divergences[cell.id] = Divergence(cell.id, row.stack, result.finding)
        runs.append((cell, row))
    former = {stack.name for stack in before.stacks.values() if stack.month == TODAY}  # of the timeline's last column
    after = recording.with_runs(before, stacks.values(), errors.values(), runs, divergences)
    after = replace(after, divergences={i: each for i, each in after.divergences.items() if each.finding != Finding()})

    def is_recorded(cell: Cell, row: Row) -> bool:
        stack = after.stacks[row.stack]
        if stack.name == TODAY or not (cell.broken and stack.named):
            known = {row.stack} | (former if stack.name == TODAY else set())
            return bool(row.error) or any(each.stack in known for each in before.rows.get(cell, ()))
        return True

    rows = {cell: [row for row in each if is_recorded(cell, row)] for cell, each in after.rows.items()}
    return recording.with_current_names(replace(after, rows=rows))


def recorded(result: Result, failure: Failure) -> RecordedError:
    """The error, the death or the hang with which a cell ended."""
    raises = result.outcome == "raises"
    traceback = result.error.traceback if raises and result.error else ""
    if not raises:
        traceback = "\n".join(rank.stack or rank.log for rank in result.ranks)
    text = shorten_paths(result.detail)
    signature = failure.signature(text) if raises else result.signature
    id_ = store.error_id(failure.name, result.outcome, text)
    return RecordedError(id_, failure.name, signature, result.outcome, text, excerpt(shorten_paths(traceback)))


def excerpt(traceback: str) -> str:
    """The first and last lines of a traceback, without the marks below its source lines."""
    lines = [line for line in traceback.splitlines() if set(line.strip()) - set("^~")]
    return "\n".join(lines if len(lines) <= FIRST + LAST else [*lines[:FIRST], "  ...", *lines[-LAST:]])


def answer(failure: Failure, signature: str, text: str) -> tuple[str, bool]:
    """The failure that `diagnose` has to name for a recorded error, and whether for no more than its mechanism; nothing
    where the catalogue has no words for it.

    Words that are another failure's are the one's of several whose context is in the error's traceback.
    """
    if signature not in failure.errors:
        return "", False
    if signature not in failure.also_raises:
        return failure.name, False
    owners = [f for f in failures().values() if signature not in f.also_raises and f.signature(text) == signature]
    fitting = [f.name for f in owners if meets_any(f.recognition.of(signature).any_of, text)]
    if fitting:
        return fitting[0], False
    same = (f for f in owners if (shared := mechanism(f, signature)) and meets_any(shared.any_of, text))
    return next(((f.name, True) for f in same), ("", False))
