"""Where to go from what has no name, and what ranks that run different modules need."""

import re
from collections.abc import Sequence

from faultline import strategies
from faultline.base.text import here, one_line
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.finding import first_names
from faultline.cells.words import group_strategies
from faultline.check.findings import OF_BUFFERS, Group, causes
from faultline.check.known import (
    ALIKE,
    ENDS,
    as_silent,
    begins_forward,
    differs_by_cache,
    fine,
    moved_by_hand,
    within,
)
from faultline.check.model_facts import UNTRIED, units
from faultline.check.variations import BESIDE, ROWS, SHARES, agreed_references, other_run
from faultline.runs.results import Result

# What gloo says where ranks call different collectives, or one with other shapes; in bytes.
UNLIKE_SIZES = re.compile(r"op\.preamble\.length <= op\.nbytes\. (\d+) vs (\d+)")
NO_ATTRIBUTE = re.compile(
    r"'(DistributedDataParallel|DeepSpeedEngine|FullyShardedDataParallel)' object has no attribute '(\w+)'"
)
BUSY = (
    "its ranks were at work all the time and didn't wait for each other: look for a backward pass that runs again and"
    " again, as where reentrant checkpoints hand a tensor on from layer to layer"
)
FEW = 5  # failures that do the same: of more, nobody learns anything


def next_steps(group: Group, results: Sequence[Result]) -> list[str]:
    """Where to go from what is wrong: what ranks need that run different modules, strategies that agree, and where it
    is silent what a smaller model has to keep.

    What has no name has no remedies of the catalogue: there are those that follow from what was seen, and failures that
    do the same.
    """
    one = group.forms[0].results[0]
    silent = all(form.results[0].outcome == "diverges" for form in group.forms)
    unlike = [*(_untried(unlike_modules(group)) or mismatched(group)), *_untried(of_wrapper(group))]
    unlike += several_causes(group)
    if group.match:
        return [*unlike, *agreeing(results), *(involved(group) if silent else [])]
    by_units = of_units(group)
    of_model = [*own_state(one), *by_units, *asks_ranks(results)]
    by_kind = [*_untried([*same_start(group), *same_buffers(group)]), *of_model] if silent else []
    lines = [*unlike, *by_kind, *resumed(group), *agreeing(results)]
    if not silent:
        return lines
    lines += involved(group)
    every = dict.fromkeys(failure.name for each in group.results for failure in as_silent(each))
    names = [*every] if len(every) <= FEW else [failure.name for failure in as_silent(one)]
    resumes = one.checked.facts.not_saved and one.signature == Signature.RESUMED_DIFFERS
    # Failures are of what is trained, and of what all ranks run.
    if unlike or resumes or moved_by_hand(one) or by_units:
        names = []
    if 0 < len(names) <= FEW:
        lines.append(f"known to do the same there: {first_names(names)}")
        lines.append(f"details: {here(f'faultline show {names[0]}')}")
    for signature in dict.fromkeys(form.results[0].signature for form in group.forms):
        lines.append(f"what {signature} means: {here(f'faultline show {signature}')}")
    return lines


def _untried(lines: Sequence[str]) -> list[str]:
    """Remedies that follow from what was seen, which nobody has run on this model."""
    return [f"{line} {UNTRIED}" for line in lines]


def agreeing(results: Sequence[Result]) -> list[str]:
    """The strategies of which every cell does what one process does, and with which kind, or that there is none of
    several."""
    wrong = {result.cell.strategy for result in results if not fine(result)}
    trains = [result for result in results if result.outcome == "trains" and result.cell.strategy not in wrong]
    right = {result.cell.strategy for result in trains}
    ran = len({result.cell.strategy for result in results if result.outcome != "impossible"})
    if right:
        judged = [result for result in trains if not result.checked.facts.draws]
        apart = {what: {r.cell.strategy for r in judged if what not in agreed_references(r)} for what in (SHARES, ROWS)}
        but = "".join(
            f", but not with {BESIDE[what]}: {group_strategies(names, ())}" for what, names in apart.items() if names
        )
        return [f"agree with a single process: {group_strategies(right, ())}{but}"]
    return [f"none of the {ran} strategies that ran agrees with a single process"] if ran > 1 else []


def involved(group: Group) -> list[str]:
    """The parts that a smaller model has to keep: the modules where cells first differ, or the buffers.

    Of what a model moves by itself nobody knows what it is moved by, and what it asks other ranks is no engine's fault.
    """
    results = group.results
    if any(moved_by_hand(result) or result.checked.collectives for result in results):
        return []
    named = modules(results) or list(dict.fromkeys(name for result in results for name in result.finding.apart))
    return [f"a smaller model shows it if it keeps {first_names(named)}"] if named else []


def modules(results: Sequence[Result]) -> list[str]:
    """The modules in which cells first differ, or those of buffers that differ: all else follows from them."""
    named: dict[str, None] = {}
    for result in results:
        named |= dict.fromkeys(name.rpartition(".")[0] for name in result.finding.apart)
        if result.finding.first and not result.finding.apart:
            named.setdefault(result.finding.first.module)
    return [name for name in named if name]


def own_state(result: Result) -> list[str]:
    """The attributes or untrained weights that the model changes by itself, where that is why it differs."""
    lines = []
    if differs_by_cache(result) and not result.checked.collectives:
        lines.append(
            f"each rank's rows leave another value in {first_names(result.checked.facts.left_unlike)}: ranks keep their"
            " own, and the one process here goes on with rank 0's. If it belongs to the rows, as a recurrent state"
            " does, the ranks are right, and not this comparison"
        )
    if moved_by_hand(result):
        moved = "a rank that has a shard moves a copy, or a part"
        lines.append(f"the model moves them by itself, without gradients: {moved}")
        lines += filter(None, [strategies.family(result.cell.strategy).moved_by_hand])
    return lines


def of_units(group: Group) -> list[str]:
    """The role of FSDP's units in a forward pass that differs in the first step already."""
    facts = group.results[0].checked.facts
    fsdp = all(result.cell.strategy.startswith("fsdp") for result in group.results)
    if not (fsdp and facts.units and all(map(begins_forward, group.results))):
        return []
    return [
        f"{units(facts)}, and has its weights while its own forward pass runs: what puts"
        " others in, as `torch.func.functional_call` does, needs that module outside of a unit"
    ]


def resumed(group: Group) -> list[str]:
    """The state that no checkpoint holds, where a resumed run goes on otherwise."""
    if all(form.results[0].signature != Signature.RESUMED_DIFFERS for form in group.forms):
        return []
    names = group.forms[0].results[0].checked.facts.not_saved
    begins = f"so {first_names(names)} {'begins' if len(names) == 1 else 'begin'} anew" if names else "these begin anew"
    holds = "a checkpoint holds no attribute of a module, and no buffer with `persistent=False`"
    return [f"{holds}{', ' if names else ': '}{begins}"]


def asks_ranks(results: Sequence[Result]) -> list[str]:
    """The collectives of the model or its loss where one process can't show these, and whether all engines leave the
    same."""
    ran = [result for result in results if result.outcome != Outcome.IMPOSSIBLE]
    names = dict.fromkeys(name for result in ran for name in result.checked.collectives)
    if not names:
        return []
    lines = []
    if not any(other_run(result, ROWS) for result in ran if not fine(result)):
        asks = f"the training asks for a rank or for others' values ({first_names([*names])})"
        lines.append(f"{asks}: one process is no judge of that")
    engines = {strategies.family_name(result.cell.strategy) for result in ran}
    first = [result.finding.first for result in ran]
    places = {(each.step, each.phase, each.module, each.parameter) for each in first if each}
    errors = [float(each.error) for each in first if each and each.error is not None]
    same = len(places) == 1 and len(errors) == len(ran) and max(errors) - min(errors) <= ALIKE * max(errors)
    if same and len(engines) > 1:
        lines.append("all engines leave the same, so that none of them is the cause")
    return lines


def mismatched(group: Group) -> list[str]:
    """The meaning of a crash or hang of unmatched collectives, where nothing shows which modules ranks run."""
    if group.match:
        return []
    crashed = filter(None, (UNLIKE_SIZES.search(result.detail) for result in group.results))
    sizes = next(crashed, None)
    hangs = any(result.outcome == Outcome.HANGS for result in group.results)
    if not sizes and not hangs:
        return []
    if not sizes and all(result.out_of_time for result in group.results):
        return [BUSY]
    first = f"a rank was sent {sizes[1]} bytes where it expected {sizes[2]}. " if sizes else ""
    return [f"{first}Every rank has to call the same collectives, in the same order, with tensors of the same shape"]


def of_wrapper(group: Group) -> list[str]:
    """Advice where code reads an attribute of a wrapped model, or goes around the forward pass of its wrapper."""
    asked = next(filter(None, (NO_ATTRIBUTE.search(result.detail) for result in group.results)), None)
    facts = group.results[0].checked.facts
    never_runs = facts.order and "" not in facts.order
    if not asked:
        never = "the model's own forward pass never runs, so that what wraps it isn't asked: let `forward` do all of it"
        return [never] if never_runs and not group.match and group.results[0].outcome in ENDS else []
    name = one_line(asked[2])
    ways = f"`getattr(model, 'module', model).{name}`, or give it back from the forward pass"
    if facts.without_root or never_runs:
        ways = (
            f"let the model's `forward` do what `{name}` does, and call `model(...)`. A call that goes around the"
            " wrapper trains without a reduction of gradients, and without an error"
        )
    return [f"a wrapper has no attribute of its model: {ways}"]


def unlike_modules(group: Group) -> list[str]:
    """Advice for ranks that run different modules: their collectives don't match, or a rank brings no gradient.

    Of what has a name and is no crash or hang, the failure's remedies say that.
    """
    ended = [result for result in group.results if result.outcome in ("crashes", "hangs")]
    silent = [result for result in group.results if not group.match and concerns_unlike(result)]
    of_these = ended or silent
    names = dict.fromkeys(n for result in of_these for n in (*result.checked.facts.unequal, *result.checked.by_rank))
    if not names:
        return []
    so = "so that their collectives don't match" if ended else "and one without them brings nothing to their gradients"
    how = "run all of them on every rank, in one order, and add 0 times what isn't needed to the loss"
    return [f"ranks run different modules ({first_names([*names])}), {so}: {how}"]


def concerns_unlike(result: Result) -> bool:
    """Whether a silent cell is wrong in a module that some ranks don't run."""
    modules = (*result.checked.facts.unequal, *result.checked.by_rank)
    first = result.finding.first
    wrong = [*(name.rpartition(".")[0] for name in result.finding.unmoved), *([first.module] if first else [])]
    return result.outcome == Outcome.DIVERGES and any(within(each, name) for each in wrong for name in modules)


def several_causes(group: Group) -> list[str]:
    """Advice where weights are wrong and buffers are as well."""
    both = [result for result in group.results if len(causes(result)) > 1 and {*causes(result)} & {*OF_BUFFERS}]
    if any(before_buffers(result) for result in both):
        early = "weights are wrong in the first step already, which begins with the same buffers on all ranks"
        return [f"{early}: what mends the buffers doesn't mend the weights"]
    first = "weights may be wrong because of the buffers, or for another reason: mend the buffers, and check again"
    return [first] if any(result.signature in OF_BUFFERS for result in both) else []


def before_buffers(result: Result) -> bool:
    """Whether a cell differs in the first backward pass already, under an engine that puts no buffer over another.

    A model that calls collectives sees other rows than one process, whose statistics may be all of that.
    """
    first = result.finding.first
    in_first = first is not None and (first.step, first.phase) == (1, "backward")
    return (
        in_first and not result.checked.collectives and not strategies.family(result.cell.strategy).broadcasts_buffers
    )


def same_start(group: Group) -> list[str]:
    """Ways to start all ranks with the same weights and buffers, where they start with different ones."""
    there = [result for result in group.results if result.signature == Signature.START_DIFFERS]
    ways = {strategies.family(result.cell.strategy).same_start for result in there}
    every = "`torch.manual_seed(0)` before the model is built gives every rank the same weights and buffers"
    apart = any(result.finding.apart for result in there)
    by_hand = ["`torch.distributed.broadcast(buffer, 0)` for each buffer before training does it for buffers"]
    return [every, *sorted(filter(None, ways)), *(by_hand if apart else [])] if there else []


def same_buffers(group: Group) -> list[str]:
    """Ways to keep the buffers of ranks alike, where they hold different ones."""
    there = [result for result in group.results if Signature.BUFFERS_APART in causes(result)]
    if not there:
        return []
    engines = [strategies.family(result.cell.strategy).buffers for result in there]
    by_hand = "`torch.distributed.broadcast(buffer, 0)` for each buffer before each forward pass keeps them alike"
    normalises = any(result.checked.facts.batch_statistics for result in there)
    others = ["so does `SyncBatchNorm` (on GPUs), or `GroupNorm`, which keeps none"] if normalises else []
    return [*dict.fromkeys(filter(None, engines)), by_hand, *others]
