"""The matrix: which cells there are, what narrows and widens it, and that every failure keeps to its form."""

from __future__ import annotations

import re
import signal
from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from faultline import strategies
from faultline.base import markdown
from faultline.base.errors import UsageError
from faultline.base.paths import REPROS
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Signature
from faultline.cells.cell import (
    CHECKPOINTING,
    DEVICES,
    LIVES,
    PRECISIONS,
    WORLD_SIZES,
    Cell,
    default_world,
    every_cell,
)
from faultline.cells.rules import IMPOSSIBLE, every_rule, possible
from faultline.cells.selection import Selection, left_out, select
from faultline.observations import measured

FAILURES = failures()
DEFAULT = select(FAILURES, Selection())
WHOLE = list(every_cell(FAILURES, "cpu"))
POSSIBLE = {cell for cell, variant in WHOLE if possible(cell, variant)}
EVERY_MODE = select(FAILURES, Selection(checkpointing=CHECKPOINTING))
EVERY_STRATEGY = select(FAILURES, Selection(strategy=("*",)))
EVERY_STRATEGY_AND_MODE = select(FAILURES, Selection(strategy=("*",), checkpointing=CHECKPOINTING))
DEFAULT_MODES = {
    cell for cell, variant in WHOLE if any(fnmatchcase(cell.checkpointing, mode) for mode in variant.checkpointing)
}
VARIANTS = sorted({variant.name for failure in FAILURES.values() for variant in failure.variants})

WORD = st.from_regex(r"[a-z0-9_*?\[\]-]+", fullmatch=True)
CELLS = st.builds(Cell, WORD, WORD, WORD, WORD, WORD, st.integers(min_value=1), WORD)


@given(CELLS | st.sampled_from(DEFAULT))
def test_law_an_id_is_read_back_as_its_cell(cell):
    assert Cell.parse(cell.id) == cell
    assert cell.id == f"{cell.failure}/{cell.name}"


@given(st.text() | st.from_regex(r"a/b/c/d/e/w[0-9a-z]*/cpu(/.*)?", fullmatch=True))
@example("failure/broken/ddp/off/fp32/w²/cpu")
def test_law_anything_else_is_refused(text):
    assume(not re.fullmatch(r"([^/]*/){5}w[1-9][0-9]*/((?!straight/)[^/]+/)?[^/]*", text, re.DOTALL))
    with pytest.raises(UsageError, match="not a cell"):
        Cell.parse(text)


def test_the_order_is_the_axes_own():
    """By failure, variant, strategy, mode, precision, world size: tables, shards and reruns rely on it."""

    def place(cell):
        names = [variant.name for variant in FAILURES[cell.failure].variants]
        return (
            cell.failure,
            names.index(cell.variant),
            strategies.names().index(cell.strategy),
            CHECKPOINTING.index(cell.checkpointing),
            PRECISIONS.index(cell.precision),
            cell.world_size,
        )

    for cells in (DEFAULT, [cell for cell, _ in WHOLE]):
        assert cells == sorted(cells, key=place)
    assert select(FAILURES, Selection()) == DEFAULT


def test_names_can_stand_in_an_id_and_in_a_list():
    for name in [*FAILURES, *VARIANTS, *strategies.names(), *CHECKPOINTING, *PRECISIONS, *DEVICES]:
        assert re.fullmatch(r"[A-Za-z0-9_-]+", name), f"{name!r} breaks ids, patterns or lists with commas"


USUAL = {"single", "ddp", "zero2", "zero3", "fsdp1-full", "fsdp2"}
IN_OTHER_WORLDS = {1: {"ddp", "zero2", "zero3", "fsdp2"}, 2: set(), 4: USUAL - {"single"}}


def runs(cell, variant, named):
    """Whether a cell runs by default, as the rules' sentences say, which `list` shows; or if its strategy is named."""
    usual = cell.world_size == default_world(cell)
    if cell.life != variant.life or not any(fnmatchcase(cell.checkpointing, mode) for mode in variant.checkpointing):
        return False
    if cell.life != "straight" and (cell.precision == "bf16" or not usual):
        return False
    if cell.precision == "bf16":
        asked = variant.bf16 or (variant.remedy == "broken" and cell.strategy in USUAL)
        return usual and asked and (named or not hybrid(cell) or mechanism(cell))
    if not usual:
        return mechanism(cell) and cell.strategy in IN_OTHER_WORLDS[cell.world_size]
    return named or not hybrid(cell) or mechanism(cell)


@pytest.mark.parametrize(("cells", "named"), [(DEFAULT, False), (EVERY_STRATEGY, True)])
def test_the_default_matrix_is_what_is_said_of_it(cells, named):
    """Breaks when a combination is missing from every run, and nobody would see it; a run is longer than it is told to
    be; or somebody who names a strategy of four ranks gets a part of it."""
    assert {*cells} == {cell for cell, variant in WHOLE if cell in POSSIBLE and runs(cell, variant, named)}


def hybrid(cell):
    """Whether a cell's strategy needs four ranks."""
    return strategies.usual_ranks(cell.strategy) == 4


def mechanism(cell):
    """Whether a cell shows a failure itself, where it costs the least."""
    return cell.variant == "broken" and cell.checkpointing != "non-reentrant"


@pytest.mark.slow
def test_what_is_left_out_and_what_is_selected_are_the_whole():
    """Breaks when a combination is in no list, or in both, or is said to be left out by another rule."""
    reasons = dict(left_out(FAILURES, Selection()))
    assert set(reasons) | set(DEFAULT) == {cell for cell, _ in WHOLE}, "cells are lost without a reason"
    assert not set(reasons) & set(DEFAULT), "cells are run and said to be left out"
    counts = Counter(reasons.values())
    assert set(counts) == {rule.reason for rule in every_rule()}, "a rule leaves nothing out, or is not told"
    for cell, variant in WHOLE:
        assert cell not in reasons or {rule.reason: rule for rule in every_rule()}[reasons[cell]].leaves_out(
            cell, variant
        )
    assert sum(counts[reason] for reason in (rule.reason for rule in IMPOSSIBLE)) + len(POSSIBLE) == len(WHOLE)
    axes = (strategies.names(), CHECKPOINTING, PRECISIONS, WORLD_SIZES, LIVES)
    combinations = len(list(product(*axes)))
    assert len(WHOLE) == combinations * sum(len(failure.variants) for failure in FAILURES.values())


@pytest.mark.slow
def test_what_is_left_out_is_told_of_what_was_named():
    """Breaks when `list --left-out` narrows otherwise than `run`, or takes what is asked for as no longer left out."""
    asked = Selection(failure=("zero3_dummy_loss",), precision=("bf16",), world_size=(4,))
    answer = dict(left_out(FAILURES, asked))
    whole = dict(left_out(FAILURES, Selection()))
    here = {c for c in whole if (c.failure, c.precision, c.world_size) == ("zero3_dummy_loss", "bf16", 4)}
    assert answer == {cell: whole[cell] for cell in here} and here
    (cell, *_) = here
    assert dict(left_out(FAILURES, Selection(cells=(cell.id,)))) == {cell: whole[cell]}


def patterns(names):
    """A name, or a pattern made of one."""
    made = st.sampled_from(sorted(names)).flatmap(
        lambda name: st.sampled_from([name, f"{name[:3]}*", f"*{name[-3:]}", f"?{name[1:]}", "*"])
    )
    return st.lists(made, max_size=2).map(tuple)


NARROW = st.builds(
    Selection,
    failure=patterns(FAILURES),
    variant=patterns(VARIANTS),
    strategy=patterns(strategies.names()),
    checkpointing=patterns(CHECKPOINTING),
)


def named(asked, cell):
    """Whether a cell is on every axis what was asked for."""
    axes = ("failure", "variant", "strategy", "checkpointing")
    wanted = {axis: getattr(asked, axis) or ("*",) for axis in axes}
    return all(any(fnmatchcase(getattr(cell, axis), p) for p in wanted[axis]) for axis in axes)


def selected(asked):
    """What is selected; a variant that none of the chosen failures has is another test's."""
    try:
        return select(FAILURES, asked)
    except UsageError as error:
        assume("unknown variant" not in str(error))
        raise


@given(NARROW)
@settings(max_examples=15)
@pytest.mark.slow
def test_law_narrowing_gives_the_part_of_the_default_matrix_that_was_named(asked):
    whole = EVERY_MODE if asked.checkpointing else DEFAULT
    if asked.strategy:
        whole = EVERY_STRATEGY_AND_MODE if asked.checkpointing else EVERY_STRATEGY
    assert selected(asked) == [cell for cell in whole if named(asked, cell)]


@given(NARROW, st.sets(st.sampled_from(PRECISIONS)), st.sets(st.sampled_from(WORLD_SIZES)))
@settings(max_examples=10)
@pytest.mark.slow
def test_law_asking_for_a_value_brings_it_back_everywhere(asked, precisions, worlds):
    results = set(selected(replace(asked, precision=tuple(precisions), world_size=tuple(worlds))))
    assert results <= POSSIBLE
    for cell in [cell for cell in POSSIBLE if named(asked, cell)]:
        if (
            cell.life != FAILURES[cell.failure].life(cell.variant)
            or cell.precision not in (precisions or PRECISIONS)
            or cell.world_size not in (worlds or WORLD_SIZES)
        ):
            assert cell not in results, f"{cell.id} was not asked for"
        elif not asked.checkpointing and cell not in DEFAULT_MODES:
            assert cell not in results, f"{cell.id} is of a mode that was not asked for"
        elif hybrid(cell) and not mechanism(cell) and not asked.strategy and not worlds:
            assert cell not in results, f"{cell.id} costs four ranks that were not asked for"
        elif (precisions or cell.precision == "fp32") and (worlds or cell.world_size == default_world(cell)):
            assert cell in results, f"{cell.id} was asked for and is left out"


@pytest.mark.slow
def test_naming_every_value_gives_every_possible_cell():
    everything = Selection(precision=PRECISIONS, world_size=WORLD_SIZES, checkpointing=CHECKPOINTING, life=LIVES)
    assert set(select(FAILURES, everything)) == POSSIBLE


SOME = st.lists(st.sampled_from(sorted(POSSIBLE, key=lambda cell: cell.id)), min_size=1)


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
        (Selection(precision=("bf61",)), "bf16"),
        (Selection(precision=("bfloat16",)), "bf16"),
        (Selection(precision=("float32",)), "fp32"),
        (Selection(device="gpu"), "cuda"),
        (Selection(device="cudaa"), "cuda"),
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


@pytest.mark.parametrize("name", ["fp16", "float16", "half"])
def test_a_precision_that_was_not_measured_is_said_to(name):
    """Breaks when bf16 is offered to somebody who trains in fp16: they differ."""
    with pytest.raises(UsageError, match="fp16 was not measured: --precision takes fp32 or bf16"):
        select(FAILURES, Selection(precision=(name,)))


@pytest.mark.parametrize("world", [-1, 0, 3, 8])
def test_a_world_size_that_does_not_divide_the_batch_is_refused(world):
    with pytest.raises(UsageError, match=f"world size {world}: .*1, 2 or 4"):
        select(FAILURES, Selection(world_size=(2, world)))


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
    head = "from faultline.catalogue import Failure\n\n"
    head += "FAILURE = Failure('t', '', '', {signatures}, (), {{}}, {elsewhere})\n"
    for name, signatures, elsewhere in (
        ("owner", {"a": "one", "b": "two"}, ()),
        ("borrower", {"b": "three"}, ("a", "b", "differs")),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "failure.py").write_text(head.format(signatures=signatures, elsewhere=elsewhere))
    results = failures(tmp_path)
    assert results["owner"].errors == {"a": "one", "b": "two"}
    assert results["borrower"].errors == {"a": "one", "b": "three"}


def test_a_quick_run_has_every_variant_once_and_every_failure_where_it_shows():
    """Breaks when `run --quick` leaves a variant out, or runs the broken ones only where nothing goes wrong."""
    quick = measured.quick(DEFAULT)
    assert [(c.failure, c.variant) for c in quick] == [(f.name, v.name) for f in FAILURES.values() for v in f.variants]
    for failure in FAILURES.values():
        today = measured.outcomes(failure)
        bad = [
            c
            for c in today
            if today[c][0] not in ("trains", "impossible", "invalid") and today[c][1] not in failure.also_raises
        ]
        for variant in {c.variant for c in bad if c.broken}:
            shown = [c for c in quick if (c.failure, c.variant) == (failure.name, variant)]
            assert {*shown} <= {*bad}, f"{failure.name}/{variant} can't be seen in a quick run"
        if failure.reported and not any(c.broken for c in bad):
            place = (failure.reported.strategy, failure.reported.checkpointing, failure.reported.precision)
            [where] = [c for c in quick if (c.failure, c.variant) == (failure.name, failure.reported.variant)]
            assert (where.strategy, where.checkpointing, where.precision) == place, "what was fixed is looked for there"
