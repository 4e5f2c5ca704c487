"""The findings of a check, on the terminal and for machines."""

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from rich.console import Console
from rich.text import Text

from faultline import strategies
from faultline.base.axes import AXES
from faultline.base.console import write_line
from faultline.base.packages import stack_name
from faultline.base.text import cut, here, one_line, plain
from faultline.catalogue.outcomes import Signature, outcome_text
from faultline.cells.cell import Cell, default_world
from faultline.cells.finding import describe_difference, first_names, split_factor
from faultline.cells.words import places
from faultline.check import model_facts, script
from faultline.check.findings import Form, Group, agrees, causes, decided, facts_of, groups, raising, ran, worst
from faultline.check.known import COMPARED, compared_of, cut_off, fine
from faultline.check.next_steps import next_steps
from faultline.check.remedies import judge_remedies
from faultline.check.variations import BESIDE, BLOCKS, ROWS, SHARES, UNITS, agreed_references, agrees_with_neither
from faultline.observations import ambiguity, matching, remedies
from faultline.observations.matching import Match
from faultline.observations.wording import normalised
from faultline.report import run, terminal
from faultline.runs.oracle import differing
from faultline.runs.progress import UNLIKE_ALONE
from faultline.runs.results import Result
from faultline.strategies.naming import mentioned

SHOWN = 3  # names of each kind
LINES = 5  # of one's own code, of an error's traceback
DETAIL = 400  # characters of an error
# What the answer for machines has of a cell's result.
CELL = """
    id outcome signature detail rank finding raised_in at apart by_rank collectives shows causes beside errors
    worst_parameter relative_error
""".split()


def show(
    console: Console, target: str, options: Sequence[str], results: Sequence[Result], more: Sequence[Result] = ()
) -> None:
    """Print facts, a table of several cells, and every group of cells that doesn't train, with what helps.

    `options` are those that the target was given with, such as ``--lora``; `more` are cells that try remedies.
    """
    facts = facts_of(results)
    write_line(console)
    about = []
    if facts:
        about.append(f"{facts.model}, {facts.parameters:,} parameters, {facts.trainable:,} of them trainable")
    if options:
        about.append(f"with {shlex.join(map(plain, options))}")
    head = Text(plain(target), "bold").append(f"  {', '.join(about)}" if about else "", "not bold dim")
    write_line(console, head)
    if {"--stack", "--python"} & {*options}:
        write_line(console, f"  on {one_line(stack_name(results[0].stack))}")
    for text in (*model_facts.of_model(facts), *model_facts.by_rank(results), *model_facts.collectives(results)):
        write_line(console, f"  {text}")
    if len(results) > 1:
        write_line(console)
        terminal.tables(console, results, UNLIKE_ALONE)
    for text in impossible(results):
        write_line(console, text, "dim")
    for text in other_units(results):
        write_line(console, text)
    shown = next((result for result in results if result.checked.at), None)  # one error's lines are enough
    for group in groups(results):
        write_line(console)
        _group(console, target, options, group, results, more, shown)
    write_line(console)
    write_line(console, verdict(results))


def other_units(results: Sequence[Result]) -> list[str]:
    """The cells that come out otherwise with other units of FSDP, one line for each way."""
    by_outcome: dict[tuple[str, str, str], list[Result]] = {}
    for result in results:
        for each in result.checked.beside:
            if each.what in (UNITS, BLOCKS):
                by_outcome.setdefault((each.what, result.outcome, each.outcome), []).append(result)
    lines = []
    for (what, outcome, other), same in by_outcome.items():
        detail = next(each.detail for each in same[0].checked.beside if each.what == what)
        why = f": {cut(detail, DETAIL)}" if detail else ""
        lines.append(
            f"depends on units  {_places_text(same, results)}: {outcome} here, and {other} {BESIDE[what]}{why}"
        )
    return lines


def impossible(results: Sequence[Result]) -> list[str]:
    """Why cells can't be run, one line for each reason, with where that is."""
    by_reason: dict[str, list[Result]] = {}
    for result in results:
        if result.outcome == "impossible":
            by_reason.setdefault(cut(result.detail, DETAIL), []).append(result)
    symbol = run.SYMBOLS["impossible"]
    return [f"{symbol} impossible  {_places_text(alike, results)}: {reason}" for reason, alike in by_reason.items()]


def _places_text(some: Sequence[Result], results: Sequence[Result]) -> str:
    return "; ".join(places([result.cell for result in some], [result.cell for result in results]))


def verdict(results: Sequence[Result]) -> str:
    """The answer in a line."""
    if not decided(results):
        return f"UNKNOWN: {'only a single process' if ran(results) else 'no cell'} could be run. {_needed(results)}"
    faults = sum(result.signature == Signature.OWN_FAULT for result in results)
    unproven = sum(result.outcome == "invalid" for result in results) - faults
    wrong = sum(not fine(result) for result in results) - unproven - faults
    parts = []
    if wrong:
        of_all = f"{wrong} of {len(results)} configurations train"
        parts.append(f"{of_all if len(results) > 1 else 'The configuration trains'} differently from a single process")
    if unproven:
        parts.append(f"{unproven} invalid, as nothing proves which strategy and mode ran")
    if faults:
        parts.append(f"{faults} ended in a bug of Faultline itself, which says nothing about the model")
    if parts:
        return "; ".join(parts) + "."
    trained = sum(result.outcome == "trains" for result in results)
    who = (
        f"All {trained} configurations that can be run train"
        if trained > 1
        else "The configuration that can be run trains"
    )
    answer = f"{who} like a single process: every gradient and weight agrees{_with_what(results)}."
    if other_units(results):
        answer += " Some come out otherwise with other units of FSDP."
    if never := cut_off(facts_of(results)):
        answer += f" But {first_names(never)} never move, not even in a single process."
    return answer


def _with_what(results: Sequence[Result]) -> str:
    """With which reference the cells that train agree, where it isn't with both."""
    every = Counter(agreed_references(result) for result in results if result.outcome == "trains")
    if not {*every} - {(SHARES, ROWS)}:
        return ""
    parts = []
    others = {ROWS: ", which draws other random numbers"} if facts_of(results).draws else {}
    for agreed, number in every.items():
        no = [what for what in (SHARES, ROWS) if what not in agreed]
        of = f"in {number} " if len(every) > 1 else ""
        but = "".join(f", and not with {BESIDE[what]}{others.get(what, '')}" for what in no)
        parts.append(f"{of}with {' and '.join(BESIDE[what] for what in agreed)}{but}")
    return f" {'; '.join(parts)}"


def _needed(results: Sequence[Result]) -> str:
    """The reasons why no strategy could be run, or the option that asks for some."""
    others = [result for result in results if strategies.distributed(result.cell.strategy)]
    why = dict.fromkeys(cut(result.detail, DETAIL) for result in others or results if result.outcome == "impossible")
    return f"What stands against the others: {'; '.join(why)}." if why else "Ask for other strategies with --strategy."


def _group(
    console: Console,
    target: str,
    options: Sequence[str],
    group: Group,
    results: Sequence[Result],
    more: Sequence[Result],
    shown: Result | None,
) -> None:
    for form in group.forms:
        _form(console, form, results)
        for place in shown.checked.at[-LINES:] if shown and any(result is shown for result in form.results) else ():
            write_line(console, f"    {cut(place, DETAIL)}", "dim")
    if match := group.match:
        name = matching.name_of(match, group.either)
        write_line(console, Text(f"  {match.sure}: ").append(name, "bold").append(f"  {titled(group, match)}"))
        for distinction in ambiguity.distinctions((match, *group.either)) if group.either else ():
            write_line(console, f"    {distinction}")
        for word, text, cells in (each.row for each in judge_remedies(group, (*results, *more))):
            write_line(console, f"    {word:<11}  {text}  [{cells}]")
        write_line(console, "  details: " + here(f"faultline show {match.failure.name}"))
    for line in next_steps(group, (*results, *more)):
        write_line(console, f"  {line}")
    first = group.forms[0].results[0]
    again = command(target, options, first)
    write_line(console, f"  reproduce: {again}", "dim")
    if script.exportable(first):
        write_line(console, f"  as a script: {again} --export repro.py", "dim")


def _form(console: Console, form: Form, results: Sequence[Result]) -> None:
    one = form.results[0]
    symbol, style = run.SYMBOLS[one.outcome], terminal.STYLES[one.outcome]
    signature = form.signature or one.signature
    every = ", ".join(signature if each == one.signature else each for each in causes(one))
    head = Text(f"{symbol} {outcome_text(one.outcome, every)}", style=style)
    write_line(console, head.append(f"  {_places_text(form.results, results)}", "default"))
    if fine(one):
        write_line(
            console, f"  as in a single process, where these never move: {first_names(cut_off(one.checked.facts))}"
        )
        return
    if neither := agrees_with_neither(one):
        write_line(console, f"  {cut(neither, DETAIL)}")
    by_words = words(form)
    for same in by_words:
        of = f"{_places_text(same, results)}: " if len(by_words) > 1 else ""
        write_line(console, f"  {of}{cut(same[0].detail, DETAIL)}")
    if one.outcome == "raises" and (ranks := raising(one)):
        write_line(console, f"  raised on rank {' and '.join(map(str, ranks))} of {len(one.ranks)}")
    for text in map(differing, worst(one)[:SHOWN]):
        if text not in one.detail:
            write_line(console, f"    {one_line(text)}")
    if one.checked.raised_in is not None:
        write_line(console, f"  raised in: {one_line(one.checked.raised_in) or 'the model itself'}")
    for fact in compared_of(one):
        write_line(console, f"  {COMPARED[fact]}")
    if difference := one.finding.first:
        write_line(console, f"  first differs: {describe_difference(difference)}")
    for each in one.checked.beside:
        if each.what in (SHARES, ROWS):
            detail = split_factor(each.detail)[1] if neither else each.detail
            write_line(console, f"  {BESIDE[each.what]}: {cut(detail, DETAIL) or 'agrees'}")
    for names in one.checked.apart:
        write_line(console, f"  tied weights came apart: {' and '.join(map(one_line, names))}")


def words(form: Form) -> list[list[Result]]:
    """The cells of a form that end in an error, by engine where engines have words of their own; the rest is alike."""
    if form.results[0].outcome != "raises":
        return [[*form.results]]
    by_words: dict[str, list[Result]] = {}
    for result in form.results:
        by_words.setdefault(normalised(result.detail), []).append(result)
    return [*by_words.values()]


def titled(group: Group, match: Match) -> str:
    """The words behind the name of a known failure: not more than is known of a model that isn't the measured one,
    and not another engine's story."""
    if match.mechanism:
        return f"the same mechanism: {match.mechanism}"
    named = mentioned(match.failure.title)
    if named and not named & {result.cell.strategy for result in group.results}:
        return "the same error, under other engines"
    return "" if group.either else match.failure.title


def command(target: str, options: Sequence[str], result: Result) -> str:
    """The command that checks the target again in one cell."""
    words = ["faultline", "check", plain(target), *map(plain, options)]
    usual = replace(Cell("", "", "", ""), world_size=default_world(result.cell))
    for axis in AXES[2:]:
        value = getattr(result.cell, axis.name)
        words += [f"--{axis.word}", str(value)] if value != getattr(usual, axis.name) else []
    return here(shlex.join(words))


def as_json(results: Sequence[Result], more: Sequence[Result] = ()) -> dict[str, object]:
    """The answer for machines; docs/check.md has the table of its keys."""
    facts = facts_of(results).as_json()
    cells = ({**result.checked.as_json(), **result.as_json()} for result in results)
    return {
        "agrees": agrees(results) if decided(results) else None,
        "model": {key: value for key, value in facts.items() if key not in ("order", "inside", "entered")},
        "cells": [{key: cell.get(key) for key in CELL} for cell in cells],
        "problems": [_problem(group, (*results, *more)) for group in groups(results)],
    }


def _problem(group: Group, results: Sequence[Result]) -> dict[str, object]:
    match, forms = group.match, [(form, form.results[0]) for form in group.forms]
    return {
        "failure": match.failure.name if match else "",
        "sure": match.sure if match else "",
        "mechanism": match.mechanism if match else "",
        "either": [other.failure.name for other in group.either],
        "forms": [
            {
                "outcome": first.outcome,
                "signature": form.signature or first.signature,
                "cells": [result.cell.id for result in form.results],
            }
            for form, first in forms
        ],
        "claims": [
            {
                **remedies.as_json(each.fate),
                "measured": each.fate.scope,
                "tried": {result.cell.id: result.outcome for result in each.results},
            }
            for each in judge_remedies(group, results)
        ],
    }
