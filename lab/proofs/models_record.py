"""The record of what `prove models` measured, in observations/."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from faultline.base.packages import TODAY
from faultline.base.paths import OBSERVATIONS
from faultline.catalogue.outcomes import Did, Outcome
from faultline.cells.cell import Cell
from faultline.check import findings, known
from faultline.runs.results import Result
from faultline.strategies import native

RECORD = OBSERVATIONS / "models.jsonl"
ADAPTED, ACCUMULATING = "+lora", "+accumulating"  # behind a model type, in the place of a variant
REFUSED = "refused"  # the signature of what one process can't build or train


@dataclass(frozen=True)
class Architecture:
    """A model type of transformers (``qwen3``), the class that is trained, and the heading that it stands below."""

    model_type: str
    model_class: str
    kind: str


class Difference(msgspec.Struct, frozen=True):
    """What a model does otherwise than a single process; `failure` is the known failure, if any.

    `cells` are those that do it, as `key` names them. `text` is the error, or what is wrong with the numbers,
    and `example` the cell that it is from.
    """

    failure: str
    did: str
    text: str
    example: str
    cells: tuple[str, ...] = ()

    @property
    def new(self) -> bool:
        """Whether no failure of the catalogue is known to do it, so that a file shows it."""
        return not self.failure


class Summary(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the cells of a model type did on a stack; `outcomes` has them as `key` names them.

    Those under transformers' own parallelism, which are `native`, have a record of their own. `refused` is why one
    process can't train it, and `impossible` why some cells can't be run. `not_fed` are the parts that the batch can't
    feed.
    """

    model: str
    model_class: str
    kind: str
    lora: bool
    native: bool = False
    stack: str = TODAY
    transformers: str = ""
    refused: str = ""
    impossible: str = ""
    outcomes: dict[str, str] = {}
    differences: tuple[Difference, ...] = ()
    not_fed: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.model} with LoRA" if self.lora else self.model


def trained(cell: Cell) -> tuple[str, bool, bool]:
    """Which record a cell belongs to: that of a model type, with LoRA or not, under whose parallelism."""
    return cell.variant.partition("+")[0], cell.variant.endswith(ADAPTED), cell.strategy in native.STRATEGIES


def summary(architecture: Architecture, entries: Sequence[Result]) -> Summary:
    """The record of one model type from its results."""
    _, lora, ours = trained(entries[0].cell)
    refusal = entries[0].detail if all(result.signature == REFUSED for result in entries) else ""
    ran = [] if refusal else entries
    return Summary(
        model=architecture.model_type,
        model_class=architecture.model_class,
        kind=architecture.kind,
        lora=lora,
        native=ours,
        transformers=entries[0].stack.get("transformers", ""),
        refused=refusal,
        impossible=next((each.detail for each in ran if each.outcome == Outcome.IMPOSSIBLE), ""),
        outcomes={key(each.cell): each.outcome for each in (entries if ours else ran)},
        differences=tuple(_differences(ran)),
        not_fed=tuple(findings.facts_of(entries).not_fed),
    )


def _differences(entries: Sequence[Result]) -> Iterable[Difference]:
    for group in findings.groups(entries):
        failure = group.failure.name if group.failure else ""
        for form in group.forms:
            wrong = [result for result in form.results if not known.fine(result)]
            if wrong:
                did = Did(wrong[0].outcome, form.signature or wrong[0].signature)
                cells = tuple(key(result.cell) for result in wrong)
                yield Difference(failure, str(did), wrong[0].detail, wrong[0].cell.id, cells)


def key(cell: Cell) -> str:
    """How a record names a cell of its model: ``strategy/checkpointing``, and whether it accumulates."""
    return f"{cell.strategy}/{cell.checkpointing}{ACCUMULATING if cell.variant.endswith(ACCUMULATING) else ''}"


def of_place(each: Summary, place: str) -> Cell:
    """The cell of a model that its record names so."""
    strategy, _, mode = place.partition("/")
    return Cell("models", each.model, strategy, mode)


def read() -> list[Summary]:
    """All records, those of today's stack first."""
    lines = RECORD.read_bytes().splitlines() if RECORD.exists() else []
    return [msgspec.json.decode(line, type=Summary) for line in lines]


def of_today() -> list[Summary]:
    """The records of today's stack, without transformers' own parallelism."""
    return [each for each in read() if each.stack == TODAY and not each.native]


def outcomes_under(strategy: str) -> dict[str, list[str]]:
    """How each model type ends today under one of transformers' own strategies: refused, or in its cells."""
    rows = [each for each in read() if each.native and each.stack == TODAY]
    ends = {
        each.model: [end for place, end in each.outcomes.items() if place.startswith(f"{strategy}/")] for each in rows
    }
    return {each.model: [REFUSED] if each.refused else [*dict.fromkeys(ends[each.model])] for each in rows}


def record(rows: Collection[Summary], stack: str, models: Sequence[str]) -> list[Summary]:
    """Write what was measured on a stack, those of `models` in their order; it replaces older records of these cells.

    What has fewer cells than its record of another release isn't written, and is given back.
    """
    fresh = {_what(each): msgspec.structs.replace(each, stack=stack) for each in rows}
    known, narrowed = read(), []
    for older in (each for each in known if each.stack == stack and _what(each) in fresh):
        newer = fresh[_what(older)]
        if older.transformers == newer.transformers:
            fresh[_what(older)] = joined(older, newer)
        elif not covers(newer, older):
            narrowed.append(fresh.pop(_what(older)))
    earlier = [each for each in known if each.stack != stack or _what(each) not in fresh]
    earlier = [each for each in earlier if each.native or each.model in models]
    order = {name: number for number, name in enumerate(models)}

    def place(each: Summary) -> tuple[object, ...]:
        return each.stack != TODAY, each.stack, each.native, order.get(each.model, len(order)), each.model, each.lora

    every = sorted([*earlier, *fresh.values()], key=place)
    RECORD.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in every))
    return narrowed


def _what(each: Summary) -> tuple[str, bool, bool]:
    return each.model, each.lora, each.native


def joined(older: Summary, newer: Summary) -> Summary:
    """A record of a release with what an older one has of other cells."""
    if newer.refused != older.refused:
        return newer
    left = [
        msgspec.structs.replace(each, cells=cells)
        for each in older.differences
        if (cells := tuple(cell for cell in each.cells if cell not in newer.outcomes))
    ]
    outcomes, differences = older.outcomes | newer.outcomes, (*left, *newer.differences)
    return msgspec.structs.replace(newer, outcomes=outcomes, differences=differences)


def covers(each: Summary, other: Summary) -> bool:
    """Whether a record says something of every cell that another has."""
    return bool(each.refused) or other.outcomes.keys() <= each.outcomes.keys()
