"""Where to go from what is silent and has no name."""

from collections.abc import Sequence

from faultline import strategies
from faultline.base.text import here
from faultline.catalogue.outcomes import Signature
from faultline.cells.finding import some
from faultline.cells.words import grouped
from faultline.check.findings import Group, as_silent, fine
from faultline.runs.results import Result

FEW = 5  # failures that do the same: of more, nobody learns anything


def next_steps(group: Group, results: Sequence[Result]) -> list[str]:
    """Where to go from what is silent and has no name: strategies that agree, and failures that do the same there."""
    if not all(form.results[0].outcome == "diverges" for form in group.forms):
        return []
    wrong = {result.cell.strategy for result in results if not fine(result)}
    lines = [*same_start(group), *same_buffers(group)]
    agreeing = {result.cell.strategy for result in results if result.outcome == "trains"} - wrong
    ran = len({result.cell.strategy for result in results if result.outcome != "impossible"})
    if agreeing:
        lines.append(f"agree with a single process: {grouped(agreeing, ())}")
    elif ran > 1:
        lines.append(f"none of the {ran} strategies that ran agrees with a single process")
    lines += involved(group)
    names = [failure.name for failure in as_silent(group.forms[0].results[0])]
    if 0 < len(names) <= FEW:
        lines.append(f"known to do the same there: {some(names)}")
        lines.append(f"details: {here(f'faultline show {names[0]}')}")
    for signature in dict.fromkeys(form.results[0].signature for form in group.forms):
        lines.append(f"what {signature} means: {here(f'faultline explain {signature}')}")
    return lines


def involved(group: Group) -> list[str]:
    """The modules that a smaller model has to keep to show it: where cells first differ, and those of the buffers."""
    named = modules([result for form in group.forms for result in form.results])
    return [f"a smaller model shows it if it keeps {some(named)}"] if named else []


def modules(results: Sequence[Result]) -> list[str]:
    """The modules in which cells first differ, and those of buffers that differ."""
    named: dict[str, None] = {}
    for result in results:
        named |= dict.fromkeys(name.rpartition(".")[0] for name in result.finding.apart)
        if result.finding.first:
            named.setdefault(result.finding.first.module)
    return [name for name in named if name]


def same_start(group: Group) -> list[str]:
    """What gives all ranks the weights of one, where they start with different ones."""
    there = [result for form in group.forms for result in form.results if result.signature == Signature.START_DIFFERS]
    ways = {strategies.constant(result.cell.strategy, "SAME_START", "") for result in there}
    every = "`torch.manual_seed(0)` before the model is built gives every rank the same weights"
    return [every, *sorted(filter(None, ways))] if there else []


def same_buffers(group: Group) -> list[str]:
    """What gives all ranks the same buffers, where ranks hold different ones."""
    there = [result for form in group.forms for result in form.results if result.signature == Signature.BUFFERS_APART]
    if not there:
        return []
    engines = [strategies.constant(result.cell.strategy, "BUFFERS", "") for result in there]
    by_hand = "`torch.distributed.broadcast(buffer, 0)` for each buffer before each forward pass mends it"
    normalises = any(result.checked.facts.batch_statistics for result in there)
    others = ["so does `SyncBatchNorm` (on GPUs), or `GroupNorm`, which keeps none"] if normalises else []
    return [*dict.fromkeys(filter(None, engines)), by_hand, *others]
