"""What `maintain models` measured: its record in observations/, and docs/models.md, which is made from that."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import msgspec

from faultline import strategies
from faultline.base.markdown import headed, put, row
from faultline.base.packages import TODAY
from faultline.base.paths import OBSERVATIONS, ROOT
from faultline.base.text import count, cut, listing
from faultline.catalogue.outcomes import Did, Outcome
from faultline.cells.cell import CHECKPOINTING, Cell
from faultline.cells.words import ordered, places
from faultline.check import findings, known
from faultline.report.run import ABSENT, SYMBOLS
from faultline.runs.results import Result

RECORD, PAGE = OBSERVATIONS / "models.jsonl", ROOT / "docs" / "models.md"
REFUSED = "refused"  # the signature of what one process can't build or train
LONGEST, REFUSAL = 160, 260  # characters of a reason, and of one why nothing was trained
EXPORTED = (
    "Each line has a config, and what writes the difference as [one file](check.md#as-a-script) that builds the model"
    " and needs nothing of this repository:"
)


@dataclass(frozen=True)
class Architecture:
    """A model type of transformers (``qwen3``), the class that is trained, and the heading that it stands below."""

    model_type: str
    model_class: str
    kind: str


class Difference(msgspec.Struct, frozen=True):
    """What a model does otherwise than a single process, and in which cells; `failure` is the known failure, if any.

    `text` is the error, or what is wrong with the numbers, and `example` the cell that it is from.
    """

    failure: str
    did: str
    where: str
    text: str
    example: str


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
        outcomes={f"{each.cell.strategy}/{each.cell.checkpointing}": each.outcome for each in ran},
        differences=tuple(_differences(ran)),
        not_fed=tuple(findings.facts_of(entries).not_fed),
    )


def _differences(entries: Sequence[Result]) -> Iterable[Difference]:
    among = [result.cell for result in entries]
    for group in findings.groups(entries):
        failure = group.failure.name if group.failure else ""
        for form in group.forms:
            wrong = [result for result in form.results if not known.fine(result)]
            if wrong:
                did = Did(wrong[0].outcome, form.signature or wrong[0].signature)
                where = "; ".join(places([result.cell for result in wrong], among))
                yield Difference(failure, str(did), where, wrong[0].detail, wrong[0].cell.id)


def read() -> list[Summary]:
    """All records, those of today's stack first."""
    lines = RECORD.read_bytes().splitlines() if RECORD.exists() else []
    return [msgspec.json.decode(line, type=Summary) for line in lines]


def record(rows: Collection[Summary], stack: str, models: Sequence[str]) -> list[Summary]:
    """Write what was measured on a stack, in the order of `models`; it replaces older records of the same there.

    What has fewer cells than its record isn't written, and is given back.
    """
    fresh = {(each.model, each.lora): msgspec.structs.replace(each, stack=stack) for each in rows}
    known = read()
    there = {(each.model, each.lora): each for each in known if each.stack == stack}
    fuller = [key for key, each in fresh.items() if key in there and not _covers(each, there[key])]
    narrowed = [fresh.pop(key) for key in fuller]
    earlier = [each for each in known if each.stack != stack or (each.model, each.lora) not in fresh]
    earlier = [each for each in earlier if each.model in models]
    order = {name: number for number, name in enumerate(models)}
    every = sorted(
        [*earlier, *fresh.values()], key=lambda each: (each.stack != TODAY, each.stack, order[each.model], each.lora)
    )
    RECORD.write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in every))
    return narrowed


def _covers(each: Summary, other: Summary) -> bool:
    """Whether a record says something of every cell that another has."""
    return bool(each.refused) or other.outcomes.keys() <= each.outcomes.keys()


def rewrite() -> str:
    """Rewrite the measured part of docs/models.md from the record, and report whether it changed."""
    return put(PAGE, lambda: page(read()))


def page(every: Sequence[Summary]) -> str:
    """The measured part of docs/models.md."""
    today = [each for each in every if each.stack == TODAY]
    columns = ordered((key.partition("/")[0] for each in today for key in each.outcomes), strategies.names())
    kinds = dict.fromkeys(each.kind for each in today)
    types = {each.model for each in today}
    fed = {each.model for each in today if not each.refused}
    version = next((each.transformers for each in today), "")
    parts = [
        f"With transformers {version}: {len(fed)} of {count(len(types), 'model type')} trained, in"
        f" {count(sum(len(each.outcomes) for each in today), 'cell')}."
    ]
    parts += ["## By kind"] if fed else []
    for kind in kinds:
        rows = [_row(each, columns) for each in today if each.kind == kind and not each.refused]
        if rows:
            parts += [f"### {kind[0].upper()}{kind[1:]}", "\n".join(headed(("model", *columns), rows))]
    parts += ["## What differs", *_listed_differences(today)]
    if refused := [each for each in today if each.refused]:
        lines = [
            f"- `{each.model}`{' with LoRA' if each.lora else ''}: {_shown(each.refused, REFUSAL)}" for each in refused
        ]
        parts += ["## What could not be trained", "\n".join(lines)]
    if impossible := _reasons((each.name, each.impossible) for each in today if each.impossible):
        parts += ["## What can't be run", "\n".join(impossible)]
    if unfed := [each for each in today if each.not_fed and not each.lora]:
        lines = [f"- `{each.model}`: {_shown('; '.join(each.not_fed))}" for each in unfed]
        parts += ["## Parts that the batch doesn't feed", "\n".join(lines)]
    return "\n\n".join([*parts, *_since(every)])


def _row(each: Summary, columns: Sequence[str]) -> str:
    """A model's line: for each strategy a symbol for each checkpointing mode, in their order."""
    symbols = ["".join(_symbol(each, strategy, mode) for mode in CHECKPOINTING) for strategy in columns]
    return row(f"`{each.model}`{' + LoRA' if each.lora else ''}", *symbols)


def _symbol(each: Summary, strategy: str, mode: str) -> str:
    outcome = each.outcomes.get(f"{strategy}/{mode}")
    return SYMBOLS[outcome] if outcome else ABSENT


def _listed_differences(rows: Sequence[Summary]) -> list[str]:
    """Each known failure with the models that show it, then what is in no catalogue."""
    scripts: dict[tuple[str, str], str] = {}
    for each in rows:
        for difference in each.differences:
            scripts.setdefault(_kind(difference), _script(each, difference))
    if not scripts:
        return ["Nothing: every cell trains as a single process does."]
    lines = _lines((each.name, difference) for each in rows for difference in each.differences)
    known = "\n".join(line for (failure, _), line in lines.items() if failure)
    new = "\n".join(f"{line}\n  {scripts[kind]}" for kind, line in lines.items() if not kind[0])
    parts = ["### Known failures", known] if known else []
    return [*parts, *(["### Not in the catalogue", EXPORTED, new] if new else [])]


def _kind(difference: Difference) -> tuple[str, str]:
    """What stands in one line: a failure and how it ends, or an error that no failure has."""
    if difference.failure:
        return difference.failure, difference.did
    hangs = difference.did.startswith(Outcome.HANGS)  # wherever its ranks were at that moment
    return "", _shown(difference.text.partition("; rank ")[0] if hangs else difference.text)


def _lines(differences: Iterable[tuple[str, Difference]]) -> dict[tuple[str, str], str]:
    """A line for each kind of difference: the models that show it, by places."""
    by_kind: dict[tuple[str, str], dict[str, list[str]]] = {}
    for name, difference in differences:
        by_kind.setdefault(_kind(difference), {}).setdefault(difference.where, []).append(name)
    lines = {}
    for (failure, did), by_place in sorted(by_kind.items()):
        where = _escaped("; ".join(f"{place}: {listing(names)}" for place, names in by_place.items()))
        what = f"[{failure}](../repros/{failure}/README.md), {did}" if failure else did
        lines[failure, did] = f"- {what.rstrip('.')}. Under {where}."
    return lines


def _script(each: Summary, difference: Difference) -> str:
    """The command that writes a difference of a model as one file, behind what its config has."""
    cell = Cell.parse(difference.example)
    config = json.dumps({"model_type": each.model, "architectures": [each.model_class]})
    lora = " --lora r=8,target=all-linear" if each.lora else ""
    place = f"--strategy {cell.strategy} --checkpointing {cell.checkpointing}"
    return f"`{config}`: `faultline check config.json{lora} {place} --export repro.py`"


def _since(every: Sequence[Summary]) -> list[str]:
    """How older releases differ: what models did there and don't today, and what they do since."""
    today = {(each.model, each.lora): each for each in every if each.stack == TODAY}
    older = [each for each in every if each.stack != TODAY and (each.model, each.lora) in today]
    stacks = sorted({each.stack for each in older}, reverse=True)
    parts = ["## On older releases"] if stacks else []
    for stack in stacks:
        both = [(each, today[each.model, each.lora]) for each in older if each.stack == stack]
        ran = [(there, now) for there, now in both if not there.refused and not now.refused]
        only_there = _lines((there.name, each) for there, now in ran for each in _without(there, now))
        whole = [(there, now) for there, now in ran if _covers(there, now)]
        only_today = _lines((there.name, each) for there, now in whole for each in _without(now, there))
        lines = _reasons((there.name, there.refused) for there, now in both if there.refused and not now.refused)
        cells = count(sum(len(there.outcomes) for there, _ in ran), "cell")
        lists = (("There, but not today:", [*only_there.values()]), ("Today, but not there:", [*only_today.values()]))
        parts.append(f"### transformers {both[0][0].transformers}")
        parts.append(f"{count(len({there.model for there, _ in ran}), 'model type')} trained, in {cells}.")
        for heading, group in (*lists, ("Not trained there:", lines)):
            parts += [heading, "\n".join(group)] if group else []
    return parts


def _reasons(given: Iterable[tuple[str, str]]) -> list[str]:
    """A line for each reason, behind the models that have it."""
    by_reason: dict[str, list[str]] = {}
    for name, reason in given:
        by_reason.setdefault(_shown(reason, REFUSAL), []).append(name)
    return [f"- {_escaped(listing(names))}: {reason}" for reason, names in by_reason.items()]


def _without(one: Summary, other: Summary) -> list[Difference]:
    """What a model does otherwise than a single process in one summary, and not in the other."""
    known = {(*_kind(each), each.where) for each in other.differences}
    return [each for each in one.differences if (*_kind(each), each.where) not in known]


def _shown(text: str, most: int = LONGEST) -> str:
    """The first sentences of a reason, up to so many characters, as Markdown."""
    first, *others = re.split(r"(?<=[.;]) ", text)
    for each in others:
        if len(first) + len(each) >= most or each.endswith("…"):  # of a record that was cut
            break
        first = f"{first} {each}"
    return _escaped(cut(first if first == text else first.rstrip("; "), most))


def _escaped(text: str) -> str:
    """Text from a run as Markdown that nothing of it can break."""
    return text.replace("\\", "\\\\").replace("<", "&lt;").replace("*", "\\*").replace("_", "\\_").replace("`", "'")
