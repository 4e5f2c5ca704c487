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

RECORD = OBSERVATIONS / "models.jsonl"
REFUSED = "refused"  # the signature of what one process can't build or train


@dataclass(frozen=True)
class Architecture:
    """A model type of transformers (``qwen3``), the class that is trained, and the heading that it stands below."""

    model_type: str
    model_class: str
    kind: str


class Difference(msgspec.Struct, frozen=True):
    """What a model does otherwise than a single process; `failure` is the known failure, if any.

    `cells` are those that do it, as ``strategy/checkpointing``. `text` is the error, or what is wrong with the numbers,
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
    """What the cells of a model type did on a stack; `outcomes` has them by ``strategy/checkpointing``.

    `refused` is why one process can't train it, and `impossible` why some cells can't be run. `not_fed` are the parts
    that the batch can't feed.
    """

    model: str
    model_class: str
    kind: str
    lora: bool
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


def summary(architecture: Architecture, lora: bool, entries: Sequence[Result]) -> Summary:
    """The record of one model type from its results."""
    refusal = next((result.detail for result in entries if result.signature == REFUSED), "")
    ran = [] if refusal else entries
    return Summary(
        model=architecture.model_type,
        model_class=architecture.model_class,
        kind=architecture.kind,
        lora=lora,
        transformers=entries[0].stack.get("transformers", ""),
        refused=refusal,
        impossible=next((each.detail for each in ran if each.outcome == Outcome.IMPOSSIBLE), ""),
        outcomes={key(each.cell): each.outcome for each in ran},
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
    """How a record names a cell of its model."""
    return f"{cell.strategy}/{cell.checkpointing}"


def of_place(each: Summary, place: str) -> Cell:
    """The cell of a model that its record names so."""
    strategy, _, mode = place.partition("/")
    return Cell("models", each.model, strategy, mode)


def read() -> list[Summary]:
    """All records, those of today's stack first."""
    lines = RECORD.read_bytes().splitlines() if RECORD.exists() else []
    return [msgspec.json.decode(line, type=Summary) for line in lines]


def of_today() -> list[Summary]:
    """The records of today's stack."""
    return [each for each in read() if each.stack == TODAY]


def record(rows: Collection[Summary], stack: str, models: Sequence[str]) -> list[Summary]:
    """Write what was measured on a stack, in the order of `models`; it replaces older records of the same there.

    What has fewer cells than its record isn't written, and is given back.
    """
    fresh = {(each.model, each.lora): msgspec.structs.replace(each, stack=stack) for each in rows}
    known = read()
    there = {(each.model, each.lora): each for each in known if each.stack == stack}
    fuller = [key for key, each in fresh.items() if key in there and not covers(each, there[key])]
    narrowed = [fresh.pop(key) for key in fuller]
    earlier = [each for each in known if each.stack != stack or (each.model, each.lora) not in fresh]
    earlier = [each for each in earlier if each.model in models]
    order = {name: number for number, name in enumerate(models)}
    every = sorted(
        [*earlier, *fresh.values()], key=lambda each: (each.stack != TODAY, each.stack, order[each.model], each.lora)
    )
    RECORD.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in every))
    return narrowed


def covers(each: Summary, other: Summary) -> bool:
    """Whether a record says something of every cell that another has."""
    return bool(each.refused) or other.outcomes.keys() <= each.outcomes.keys()
