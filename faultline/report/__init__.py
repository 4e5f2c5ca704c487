"""What all reports share: the words and symbols, tables of a run, and texts made safe to show."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from faultline import claims, strategies
from faultline.catalogue import ROOT, Failure, failures
from faultline.claims import Verdict
from faultline.matrix import AXES, CHECKPOINTING, Cell, default_world
from faultline.results import Result

SYMBOLS = {
    "trains": "✓",
    "raises": "✗",
    "diverges": "≠",
    "misplaced": "⌂",
    "hangs": "∞",
    "crashes": "†",
    "impossible": "–",  # noqa: RUF001 - a dash, as in any table
    "invalid": "?",
}
ABSENT = "·"

# Sequences that move a terminal's cursor or set its title; then what is left of them and of binary output,
# characters that XML forbids, and marks that show a text in another order than it has.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_BREAKS = re.compile(r"\r\n?|[\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")
_FORBIDDEN = re.compile(
    r"[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True)
class Row:
    """One line of a failure's table; `extra` where it isn't fp32 at the default world size."""

    label: str
    extra: bool
    cells: dict[tuple[str, str], Result] = field(default_factory=dict)
    """Results by strategy and checkpointing mode."""


@dataclass(frozen=True)
class Table:
    """One failure's results: variants down, the strategies that are there across."""

    failure: str
    strategies: list[str]
    rows: list[Row]


def plain(text: object) -> str:
    """A text without escape sequences and characters that terminals or XML take for something else."""
    text = str(text)
    if text.isascii() and text.isprintable():
        return text
    return _FORBIDDEN.sub("", _BREAKS.sub("\n", _ESCAPES.sub("", text)))


def one_line(text: object) -> str:
    return " ".join(plain(text).split())


def cut(text: object, most: int) -> str:
    """A text in one line of so many characters at most: whole words and an ellipsis where there is more of it. Only a
    word that is half of the line is cut itself."""
    line = one_line(text)
    if len(line) <= most:
        return line
    whole = line[:most].rpartition(" ")[0]
    return (whole if len(whole) > most // 2 else line[: most - 1]) + "…"


def as_expected(result: Result) -> bool:
    """Whether a cell did what was expected of it; one without evidence never did."""
    return result["verdict"] == "expected" and result["outcome"] != "invalid"


def expectation(result: Result) -> str:
    """The expected and the observed outcome in a few words."""
    expected = result["expected"]
    return f"expected {named(expected['outcome'], *expected['signatures'])}, got {found(result)}"


def found(result: Result) -> str:
    return named(result["outcome"], result["signature"])


def named(outcome: str, *signatures: str) -> str:
    """An outcome with its signatures behind it: ``raises (no-grad-fn)``."""
    known = " or ".join(filter(None, signatures))
    return one_line(f"{outcome} ({known})" if known else outcome)


def command(cell: str, stack: str = "") -> str:
    """What repeats exactly one cell, on a stack as it was asked for; nothing for what a shell or make would misread."""
    if not re.fullmatch(r"[A-Za-z0-9_./-]+", cell) or not re.fullmatch(r"[\w.=<>!~+,@:/\[\] -]*", stack, re.ASCII):
        return ""
    return f"make test-matrix CELL={cell}" + (f" STACK='{stack}'" if stack else "")


def here(command: str) -> str:
    """A command as it can be typed in the current folder; it is written for the clone's."""
    if Path.cwd() == ROOT:
        return command
    clone = shlex.quote(str(ROOT))
    ours = re.sub(r"\Apython -m faultline\b", lambda _: shlex.quote(str(ROOT / "bin" / "faultline")), command)
    return re.sub(r"\Amake\b", lambda _: f"make -C {clone}", ours)


def cell_of(result: Result) -> Cell:
    return Cell(**{axis: result[axis] for axis in AXES})


def outcomes(results: Iterable[Result]) -> dict[Cell, tuple[str, str]]:
    """Outcome and signature of each cell, as claims are held against them."""
    return {cell_of(result): (result["outcome"], result["signature"]) for result in results}


def verdicts(failure: Failure, results: Iterable[Result]) -> dict[str, Verdict]:
    """Each claim's verdict; results of variants that the failure no longer has say nothing."""
    known = {variant.name for variant in failure.variants}
    observed = outcomes(r for r in results if r["failure"] == failure.name and r["variant"] in known)
    return {key: claims.verdict(failure, claim, observed) for key, claim in failure.claims.items()}


def ordered(values: Iterable[str], known: Sequence[str]) -> list[str]:
    """Distinct values in a known order, with unknown ones behind."""
    distinct = dict.fromkeys(values)
    return [v for v in known if v in distinct] + sorted(v for v in distinct if v not in known)


def tables(results: Collection[Result]) -> list[Table]:
    """One table for each failure of a run, with every result in exactly one place."""
    made = []
    for name in sorted({result["failure"] for result in results}):
        own = [result for result in results if result["failure"] == name]
        failure = failures().get(name)
        variants = ordered((r["variant"] for r in own), [v.name for v in failure.variants] if failure else [])
        devices = {result["device"] for result in own}
        rows: dict[tuple[bool, int, str], Row] = {}
        for result in own:
            told = _deviations(cell_of(result), several_devices=len(devices) > 1)
            key = (bool(told), variants.index(result["variant"]), told)
            row = rows.setdefault(key, Row(f"{result['variant']} {told}".strip(), bool(told)))
            row.cells[result["strategy"], result["checkpointing"]] = result
        columns = ordered((result["strategy"] for result in own), strategies.names())
        made.append(Table(name, columns, [rows[key] for key in sorted(rows)]))
    return made


def _deviations(cell: Cell, several_devices: bool) -> str:
    """How a cell differs from the main table's: precision, world size, device."""
    parts = [
        cell.precision if cell.precision != "fp32" else "",
        f"w{cell.world_size}" if cell.world_size != default_world(cell) else "",
        cell.device if several_devices and cell.device != "cpu" else "",
    ]
    return " ".join(filter(None, parts))


def grouped(names: Iterable[str], among: Collection[str]) -> str:
    """Strategies in few words: ``zero2*`` where every strategy that it matches is meant."""
    left, known = ordered(names, strategies.names()), strategies.names()
    if len(left) > 1 and set(left) == set(among):
        return f"all {len(left)} strategies"
    words = {}
    prefixes = {name[: part.end()] for name in known for part in re.finditer(r"[a-z]+|\d|-", name)}
    for prefix in sorted(prefixes, key=lambda prefix: (len(prefix), prefix)):
        family = [name for name in known if name.startswith(prefix)]
        if len(family) > 1 and all(name in left for name in family):
            words[f"{prefix}*"] = known.index(family[0])
            left = [name for name in left if name not in family]
    words |= {name: known.index(name) if name in known else len(known) for name in left}
    return ", ".join(sorted(words, key=lambda word: words[word]))


def where(failure: Failure, verdict: Verdict, observed: claims.Outcomes) -> list[str]:
    """The cells that say most of a claim, one text for each outcome: those against it, or those that it changes.

    What was observed is that of the swapped cells, where these are of another stack.
    """
    cells = (*verdict.speaks_for, *verdict.against)
    telling = verdict.speaks_for if verdict.claim.kind == "changes" else verdict.against
    # What speaks against a claim is what the cell does that it proposes, if it proposes one.
    judged = {cell: claims.swapped(failure, verdict.claim, cell) if verdict.claim.swap else cell for cell in telling}
    by_outcome: dict[str, list[Cell]] = {}
    for cell in sorted(judged, key=_order):
        by_outcome.setdefault(named(*observed[judged[cell]]), []).append(cell)
    return [
        told if len(there) == len(cells) else f"{told} under {', '.join(places(there, cells))}"
        for told, there in by_outcome.items()
    ]


def places(there: Collection[Cell], among: Collection[Cell]) -> list[str]:
    """Some of many cells in words; an axis is left out where it makes no difference.

    Another world size than the default is named only for what the default doesn't show.
    """
    variants, modes = ({getattr(cell, axis) for cell in among} for axis in ("variant", "checkpointing"))
    default = {_spot(cell) for cell in there if cell.world_size == default_world(cell)}
    found: dict[tuple[str, str], dict[str, dict[str, list[str]]]] = {}
    for cell in sorted(there, key=_order):
        world = "" if cell.world_size == default_world(cell) else f"w{cell.world_size}"
        if world and _spot(cell) in default:
            continue
        precision = cell.precision if cell.precision != "fp32" else ""
        by_mode = found.setdefault((precision, world), {}).setdefault(cell.variant, {})
        by_mode.setdefault(cell.checkpointing, []).append(cell.strategy)
    everywhere = {cell.strategy for cell in among}
    texts: dict[str, list[str]] = {}  # the variants of each text
    for which, by_variant in found.items():
        for variant, by_mode in by_variant.items():
            same: dict[str, list[str]] = {}
            for mode, names in by_mode.items():
                same.setdefault(grouped(names, everywhere), []).append(mode)
            for group, own in same.items():
                told = ", ".join(filter(None, (*(own if modes - {*own} else ()), *which)))
                texts.setdefault(f"{group} ({told})" if told else group, []).append(variant)
    return [f"{text} in {', '.join(own)}" if variants - {*own} else text for text, own in texts.items()]


def _spot(cell: Cell) -> tuple[str, ...]:
    return cell.variant, cell.strategy, cell.checkpointing, cell.precision


def _order(cell: Cell) -> tuple[object, ...]:
    names = strategies.names()
    return (
        cell.world_size != default_world(cell),
        cell.precision != "fp32",
        cell.variant,
        CHECKPOINTING.index(cell.checkpointing) if cell.checkpointing in CHECKPOINTING else -1,
        names.index(cell.strategy) if cell.strategy in names else -1,
        cell.world_size,
        cell.device,
    )
