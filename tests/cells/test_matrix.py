"""The matrix: which cells there are, what narrows and widens it, and that every failure keeps to its form."""

import functools
import math
import re
import signal
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from faultline import strategies
from faultline.base import markdown
from faultline.base.axes import AXES, CHECKPOINTING, DEVICES, OPTIONAL, PRECISIONS
from faultline.base.errors import UsageError
from faultline.base.paths import REPROS
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Signature
from faultline.cells import claims
from faultline.cells.cell import Cell, every_cell, known_values, own_values
from faultline.cells.rules import IMPOSSIBLE, every_rule, possible
from faultline.cells.selection import Selection, left_out, select
from faultline.observations import measured

FAILURES = failures()
VARIANTS = sorted({variant.name for failure in FAILURES.values() for variant in failure.variants})

WORD = st.from_regex(r"[a-z0-9_*?\[\]-]+", fullmatch=True)
CELLS = st.builds(Cell, WORD, WORD, WORD, WORD, WORD, st.integers(min_value=1), WORD)


@functools.cache
def default():
    return select(FAILURES, Selection())


@functools.cache
def can_exist():
    """Every cell that can exist, with its variant."""
    return {cell: variant for cell, variant in every_cell(FAILURES, "cpu") if possible(cell, variant)}


@given(CELLS | st.deferred(lambda: st.sampled_from(default())))
def test_law_an_id_is_read_back_as_its_cell(cell):
    assert Cell.parse(cell.id) == cell
    assert cell.id == f"{cell.failure}/{cell.name}"


@given(st.text() | st.from_regex(r"a/b/c/d/e/w[0-9a-z]*/cpu(/.*)?", fullmatch=True))
@example("failure/broken/ddp/off/fp32/w²/cpu")
def test_law_anything_else_is_refused(text):
    assume(not re.fullmatch(r"([^/]*/){5}w[1-9][0-9]*/((?!straight/)[^/]+/)?[^/]*", text, re.DOTALL))
    with pytest.raises(UsageError, match="not a cell"):
        Cell.parse(text)


@pytest.mark.slow
def test_the_order_is_the_axes_own():
    """By failure, variant, strategy, mode, precision, world size: tables, shards and reruns rely on it."""

    axes = AXES[2:-1]

    def place(cell):
        names = [variant.name for variant in FAILURES[cell.failure].variants]
        values = (known_values(axis).index(getattr(cell, axis.name)) for axis in axes)
        return cell.failure, names.index(cell.variant), *values

    for cells in (default(), [cell for cell, _ in every_cell(FAILURES, "cpu")]):
        assert cells == sorted(cells, key=place)


def test_names_can_stand_in_an_id_and_in_a_list():
    values = [value for axis in OPTIONAL for value in axis.values]
    assert len({*values}) == len(values), "an id doesn't say which axis a value is of"
    for name in [*FAILURES, *VARIANTS, *strategies.names(), *CHECKPOINTING, *PRECISIONS, *DEVICES]:
        assert re.fullmatch(r"[A-Za-z0-9_-]+", name), f"{name!r} breaks ids, patterns or lists with commas"


@pytest.mark.slow
@pytest.mark.parametrize("every", [6, pytest.param(1, marks=pytest.mark.nightly)])
def test_what_is_left_out_and_what_is_selected_are_the_whole(every):
    """Breaks when a combination is in no list, or in both, or is said to be left out by another rule."""
    failures = dict([*FAILURES.items()][::every])
    cells, selected = dict(every_cell(failures, "cpu")), {*select(failures, Selection())}
    reasons = dict(left_out(failures, Selection()))
    assert reasons.keys() | selected == cells.keys(), "cells are lost without a reason"
    assert not reasons.keys() & selected, "cells are run and said to be left out"
    rules, counts = {rule.reason: rule for rule in every_rule()}, Counter(reasons.values())
    assert counts.keys() == rules.keys(), "a rule leaves nothing out, or is not told"
    assert all(rules[reason].leaves_out(cell, cells[cell]) for cell, reason in reasons.items())
    there = sum(possible(cell, variant) for cell, variant in cells.items())
    assert sum(counts[rule.reason] for rule in IMPOSSIBLE) + there == len(cells)
    combinations = math.prod(len(known_values(axis)) for axis in AXES[2:-1])
    assert len(cells) == combinations * sum(len(failure.variants) for failure in failures.values())


def test_what_is_left_out_is_told_of_what_was_named():
    """Breaks when `list --left-out` narrows otherwise than `run`, or takes what is asked for as no longer left out."""
    failures = {name: FAILURES[name] for name in ("zero3_dummy_loss", "grpo_lora_no_grad")}
    asked = Selection(failure=("zero3_dummy_loss",), precision=("bf16",), world_size=(4,))
    answer = dict(left_out(failures, asked))
    every = dict(left_out(failures, Selection()))
    here = {c for c in every if (c.failure, c.precision, c.world_size) == ("zero3_dummy_loss", "bf16", 4)}
    assert answer == {cell: every[cell] for cell in here} and here
    (cell, *_) = here
    assert dict(left_out(failures, Selection(cells=(cell.id,)))) == {cell: every[cell]}


def patterns(names):
    """A name, or a pattern made of one."""
    made = st.sampled_from(sorted(names)).flatmap(
        lambda name: st.sampled_from([name, f"{name[:3]}*", f"*{name[-3:]}", f"?{name[1:]}", "*"])
    )
    return st.lists(made, max_size=2).map(tuple)


ASKED = st.builds(
    Selection,
    failure=patterns(FAILURES),
    variant=patterns(VARIANTS),
    strategy=patterns(strategies.names()),
    **{axis.name: st.sets(st.sampled_from(known_values(axis))).map(tuple) for axis in AXES[3:-1]},
)
EVERYTHING = Selection(**{axis.name: tuple(known_values(axis)) for axis in AXES[3:-1]})
OF_EXPERTS = {"tp-ep", "ep-fsdp"}
USUAL = {"single", "ddp", "zero2", "zero3", "fsdp1-full", "fsdp2"}
IN_OTHER_WORLDS = {1: {"ddp", "zero2", "zero3", "fsdp2"}, 2: set(), 4: USUAL - {"single"}}


def named(asked):
    """The values of each axis that are asked for."""
    values = (FAILURES, VARIANTS, *(known_values(axis) for axis in AXES[2:-1]))
    patterns = {axis.name: [str(each) for each in getattr(asked, axis.name)] or ["*"] for axis in AXES[:-1]}
    return {
        axis: {value for value in known if any(fnmatchcase(str(value), pattern) for pattern in patterns[axis])}
        for axis, known in zip(patterns, values, strict=True)
    }


def runs(cell, variant, asked):
    """Whether a cell of the named values runs if this is asked for, as the sentences say that `list` shows."""
    usual, bf16 = cell.world_size == strategies.usual_ranks(cell.strategy), cell.precision == "bf16"
    mechanism = cell.variant == "broken" and cell.checkpointing != "non-reentrant"  # where it costs the least
    if not asked.checkpointing and not any(fnmatchcase(cell.checkpointing, mode) for mode in variant.checkpointing):
        return False
    usual_place = own_values(FAILURES[cell.failure], cell.variant)
    also = any(fnmatchcase(cell.name.partition("/")[2], pattern) for pattern in variant.also)
    moved = [axis for axis, value in usual_place.items() if not getattr(asked, axis) and getattr(cell, axis) != value]
    if moved and not also:
        return False
    resumed = cell.life != "straight" and not asked.life
    if resumed and ((bf16 and not asked.precision) or not (usual or asked.world_size)):
        return False
    mentioned = cell.strategy in variant.strategies
    if cell.strategy in OF_EXPERTS and not (mentioned or asked.strategy or asked.world_size):
        return False
    few = strategies.usual_ranks(cell.strategy) == 4 or cell.strategy in {"tp", "native-fsdp", *OF_EXPERTS}
    if few and not (mechanism or mentioned or asked.strategy or asked.world_size):
        return False
    if bf16 and not asked.precision:
        if not (variant.bf16 or (variant.remedy == "broken" and cell.strategy in USUAL)):
            return False
        return usual or asked.world_size
    return usual or asked.world_size or (mechanism and cell.strategy in IN_OTHER_WORLDS[cell.world_size])


@pytest.mark.slow
@example(Selection())
@example(Selection(strategy=("*",)))
@example(EVERYTHING)
@given(ASKED)
@settings(max_examples=10)
def test_law_what_runs_is_what_is_said_of_it(asked):
    """Breaks when a combination is in no run, a run is longer than is said, or a named value gives a part of it."""
    try:
        cells = select(FAILURES, asked)
    except UsageError as error:
        assume("unknown variant" not in str(error))  # that none of the chosen failures has it is another test's
        raise
    values = named(asked)
    here = [cell for cell in can_exist() if all(getattr(cell, axis) in values[axis] for axis in values)]
    assert cells == [cell for cell in here if runs(cell, can_exist()[cell], asked)]
    assert asked != EVERYTHING or cells == [*can_exist()]


SOME = st.lists(st.deferred(lambda: st.sampled_from([*can_exist()])), min_size=1)


@given(SOME, st.sampled_from(DEVICES))
@settings(max_examples=6)
@pytest.mark.slow
def test_law_whole_ids_give_just_those_cells_in_their_order(cells, device):
    cells = [replace(cell, device=device) for cell in cells]
    assert select(FAILURES, Selection(cells=tuple(cell.id for cell in cells))) == list(dict.fromkeys(cells))


@pytest.mark.parametrize(
    ("asked", "nearest"),
    [
        (Selection(failure=("zero_double_reductoin",)), "zero_double_reduction"),
        (Selection(variant=("brokn",)), "broken"),
        (Selection(failure=("zero3_dummy_loss",), variant=("gatherd",)), "gathered"),
        (Selection(strategy=("ddp", "zero33")), "zero3"),
        (Selection(strategy=("deepspeed*",)), "zero3"),
        (Selection(checkpointing=("reentrent",)), "reentrant"),
        (Selection(device="gpu"), "cuda"),
        pytest.param(
            *(Selection(cells=("zero3_dummy_loss/broken/single/off/fp32/w2/cpu",)), "broken/single/off/fp32/w1/cpu"),
            marks=pytest.mark.slow,  # it looks for the nearest of twenty thousand ids
        ),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(asked, nearest):
    with pytest.raises(UsageError, match=r"^unknown .*; did you mean .*\?$") as refused:
        select(FAILURES, asked)
    assert nearest in str(refused.value) or "*" in str(asked), "the name that was meant is not among the nearest"


@pytest.mark.parametrize(
    ("asked", "words"),
    [(Selection(precision=(name,)), "fp16 was not measured: .*bf16") for name in ("fp16", "float16", "half")]
    + [(Selection(world_size=(2, size)), f"world size {size}: .*1, 2 or 4") for size in (-1, 0, 3, 8)],
)
def test_what_was_not_measured_is_said_to(asked, words):
    """Breaks when bf16 is offered to somebody who trains in fp16, as they differ, or ranks would share a row."""
    with pytest.raises(UsageError, match=words):
        select(FAILURES, asked)


def faults(failure):
    """What is wrong with a failure's folder or its record."""
    folder, names = REPROS / failure.name, [variant.name for variant in failure.variants]
    text = (folder / "README.md").read_text(encoding="utf-8")
    patterns = {pattern for variant in failure.variants for pattern in variant.strategies}
    others = {*failure.also_raises} - {*failure.errors}
    holds = {
        "`readme` has no place for what was measured": 0 <= text.find(markdown.BEGIN) < text.find(markdown.END),
        "`readme` has two such places": text.count(markdown.BEGIN) == text.count(markdown.END) == 1,
        "failure.py has no docstring": (folder / "failure.py").read_text(encoding="utf-8").startswith('"""'),
        "it says nothing of itself": failure.title and failure.since and failure.until,
        "it has no record": failure.records and all(record.startswith("https://") for record in failure.records),
        "nothing shows the failure": any(variant.remedy == "broken" for variant in failure.variants),
        "two variants have one name": len(names) == len(set(names)),
        "a pattern of no strategy": all(any(fnmatchcase(s, each) for s in strategies.names()) for each in patterns),
        "a signature matches every error": not any(re.search(pattern, "") for pattern in failure.errors.values()),
        "`other` stands for errors without a signature": "other" not in failure.errors,
        "a signature knows any error": failure.signature("SomeError: nobody knows this one") == "other",
        "a signature that no failure has": others <= {*Signature, *signal.Signals.__members__},
    }
    return [words for words, true in holds.items() if not true]


def test_every_failure_is_whole():
    """Breaks when a folder or a record lacks what every command relies on, or a signature takes in what isn't its."""
    every = {name: faults(failure) for name, failure in FAILURES.items()}
    assert not {name: words for name, words in every.items() if words}


def test_what_is_another_failures_has_its_words_unless_it_has_its_own(tmp_path):
    """Breaks when an error that another failure owns is `other` here, or a pattern of one's own is lost."""
    written = "from faultline.catalogue import Failure\n\nFAILURE = Failure('t', '', '', {}, (), {{}}, {})\n"
    borrowed = ("a", "b", "differs")
    for name, *values in (("owner", {"a": "one", "b": "two"}, ()), ("borrower", {"b": "three"}, borrowed)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "failure.py").write_text(written.format(*values))
    results = failures(tmp_path)
    assert results["owner"].errors == {"a": "one", "b": "two"}
    assert results["borrower"].errors == {"a": "one", "b": "three"}


def test_a_quick_run_has_every_variant_once_and_every_failure_where_it_shows():
    """Breaks when `run --quick` leaves a variant out, or runs the broken ones only where nothing goes wrong."""
    quick = measured.quick(default())
    assert [(c.failure, c.variant) for c in quick] == [(f.name, v.name) for f in FAILURES.values() for v in f.variants]
    for failure in FAILURES.values():
        bad = claims.showing(failure, measured.outcomes(failure))
        for variant in {c.variant for c in bad}:
            shown = [c for c in quick if (c.failure, c.variant) == (failure.name, variant)]
            assert {*shown} <= {*bad}, f"{failure.name}/{variant} can't be seen in a quick run"
        if failure.reported and not bad:
            place = tuple(failure.reported.place.values())[1:]
            [where] = [c for c in quick if (c.failure, c.variant) == (failure.name, failure.reported.variant)]
            assert (where.strategy, where.checkpointing, where.precision) == place, "what was fixed is looked for there"
