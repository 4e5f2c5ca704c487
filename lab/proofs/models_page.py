"""What `prove models` measured: its record in observations/, and docs/models.md, which is made from that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.markdown import headed, put, row
from faultline.base.packages import TODAY
from faultline.base.paths import OBSERVATIONS, ROOT
from faultline.base.text import count, cut, listing
from faultline.catalogue.outcomes import Outcome
from faultline.cells.cell import Cell
from faultline.cells.words import in_order, places
from faultline.report.run import ABSENT, SYMBOLS
from lab.proofs import plans_page
from lab.proofs.models_record import Difference, Summary, covers, key, of_place, read

PAGE = ROOT / "docs" / "models.md"
SCRIPTS = OBSERVATIONS / "models"  # the files that show what is in no catalogue
LONGEST, REFUSAL = 160, 260  # characters of a reason, and of one why nothing was trained
EXPORTED = "Each line has a file that builds the model, shows the difference and needs nothing of this repository:"
UNFED = "°"  # behind a model whose batch left a part out

Kind = tuple[str, str]
"""A failure and how it ends, or none and an error that no failure has."""


def rewrite() -> str:
    """Rewrite the measured part of docs/models.md from the record, and report whether it changed."""
    return put(PAGE, lambda: page(read()))


def page(every: Sequence[Summary]) -> str:
    """The measured part of docs/models.md."""
    native = [each for each in every if each.native]
    every = [each for each in every if not each.native]
    today = [each for each in every if each.stack == TODAY]
    columns = in_order((key.partition("/")[0] for each in today for key in each.outcomes), strategies.names())
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
        ran = [each for each in today if each.kind == kind and not each.refused]
        alike = [each for each in ran if _trains(each, columns)]
        rows = [_row(each, columns) for each in ran if each not in alike]
        parts += [f"### {kind[0].upper()}{kind[1:]}"] if ran else []
        parts += [f"{SYMBOLS[Outcome.TRAINS]} in every cell: {', '.join(map(_named, alike))}."] if alike else []
        parts += ["\n".join(headed(("model", *columns), rows))] if rows else []
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
        parts += ["## Parts that the batch doesn't feed", f"Their rows have a {UNFED}.", "\n".join(lines)]
    return "\n\n".join([*parts, *plans_page.section(native), *_since(every)])


def _trains(each: Summary, columns: Sequence[str]) -> bool:
    """Whether a model was run in every cell, and trains in each as a single process does."""
    return all(
        each.outcomes.get(f"{strategy}/{mode}") == Outcome.TRAINS for strategy in columns for mode in CHECKPOINTING
    )


def _named(each: Summary) -> str:
    return f"`{each.model}`{' + LoRA' if each.lora else ''}{UNFED if each.not_fed else ''}"


def _row(each: Summary, columns: Sequence[str]) -> str:
    """A model's line: for each strategy a symbol for each checkpointing mode, in their order."""
    symbols = ["".join(_symbol(each, strategy, mode) for mode in CHECKPOINTING) for strategy in columns]
    return row(_named(each), *symbols)


def _symbol(each: Summary, strategy: str, mode: str) -> str:
    outcome = each.outcomes.get(f"{strategy}/{mode}")
    return SYMBOLS[outcome] if outcome else ABSENT


def _listed_differences(rows: Sequence[Summary]) -> list[str]:
    """Each known failure with the models that show it, then what is in no catalogue."""
    examples = first_of_each(rows)
    if not examples:
        return ["Nothing: every cell trains as a single process does."]
    lines = _lines((each, each.differences) for each in rows)
    known = "\n".join(line for (failure, _), line in lines.items() if failure)
    new = "\n".join(f"{line}\n  {_shown_by(*examples[kind])}" for kind, line in lines.items() if not kind[0])
    parts = ["### Known failures", known] if known else []
    return [*parts, *(["### Not in the catalogue", EXPORTED, new] if new else [])]


def first_of_each(rows: Sequence[Summary]) -> dict[Kind, tuple[Summary, Difference]]:
    """For each kind of difference the first model that shows it."""
    examples: dict[Kind, tuple[Summary, Difference]] = {}
    for each in rows:
        for difference in each.differences:
            examples.setdefault(_kind(difference), (each, difference))
    return examples


def _kind(difference: Difference) -> Kind:
    """What stands in one line: a failure and how it ends, or an error that no failure has."""
    if difference.failure:
        return difference.failure, difference.did
    hangs = difference.did.startswith(Outcome.HANGS)  # wherever its ranks were at that moment
    return "", _shown(difference.text.partition("; rank ")[0] if hangs else difference.text)


def _lines(differences: Iterable[tuple[Summary, Iterable[Difference]]]) -> dict[Kind, str]:
    """A line for each kind of difference: the models that show it, by places."""
    by_kind: dict[Kind, dict[str, list[str]]] = {}
    for each, some in differences:
        among = [of_place(each, place) for place in each.outcomes]
        for difference in some:
            there = "; ".join(places([one for one in among if key(one) in difference.cells], among))
            by_kind.setdefault(_kind(difference), {}).setdefault(there, []).append(each.name)
    lines = {}
    for (failure, did), by_place in sorted(by_kind.items()):
        where = _escaped("; ".join(f"{place}: {listing(names)}" for place, names in by_place.items()))
        what = f"[{failure}](../repros/{failure}/README.md), {did}" if failure else did
        lines[failure, did] = f"- {what.rstrip('.')}. Under {where}."
    return lines


def script(each: Summary, difference: Difference) -> Path:
    """The file that shows a difference of a model."""
    cell, adapter = Cell.parse(difference.example), "-lora" if each.lora else ""
    return SCRIPTS / f"{each.model}{adapter}-{cell.strategy}-{cell.checkpointing}.py"


def _shown_by(each: Summary, difference: Difference) -> str:
    """A link to the file of a difference; where there is none, the command that shows it."""
    file = script(each, difference)
    if difference.new and file.exists():
        return f"[{file.name}](../{file.relative_to(ROOT)})"
    cell = Cell.parse(difference.example)
    config = json.dumps({"model_type": each.model, "architectures": [each.model_class]})
    lora = " --lora r=8,target=all-linear" if each.lora else ""
    place = f"--strategy {cell.strategy} --checkpointing {cell.checkpointing}"
    return f"With `{config}`: `faultline check config.json{lora} {place}`"


def _since(every: Sequence[Summary]) -> list[str]:
    """How older releases differ: what models did there and don't today, and what they do since."""
    today = {(each.model, each.lora): each for each in every if each.stack == TODAY}
    older = [each for each in every if each.stack != TODAY and (each.model, each.lora) in today]
    stacks = sorted({each.stack for each in older}, reverse=True)
    parts = ["## On older releases"] if stacks else []
    for stack in stacks:
        both = [(each, today[each.model, each.lora]) for each in older if each.stack == stack]
        ran = [(there, now) for there, now in both if not there.refused and not now.refused]
        only_there = _lines((there, _without(there, now)) for there, now in ran)
        whole = [(there, now) for there, now in ran if covers(there, now)]
        only_today = _lines((now, _without(now, there)) for there, now in whole)
        lines = _reasons((there.name, there.refused) for there, now in both if there.refused and not now.refused)
        cells = count(sum(len(there.outcomes) for there, _ in ran), "cell")
        lists = (("Gone since then:", [*only_there.values()]), ("New since then:", [*only_today.values()]))
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
    """What a model does otherwise than a single process in one summary, in the cells that don't in the other."""
    known = {(cell, _kind(each)) for each in other.differences for cell in each.cells}
    cells = {each: tuple(cell for cell in each.cells if (cell, _kind(each)) not in known) for each in one.differences}
    return [msgspec.structs.replace(each, cells=left) for each, left in cells.items() if left]


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
