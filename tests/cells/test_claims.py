"""Claims: which cells speak for a remedy, which against it, and which say nothing."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.axes import CHECKPOINTING, NAMES
from faultline.base.packages import TODAY
from faultline.catalogue import Claim, History, Variant
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did, Outcome
from faultline.cells.cell import Cell
from faultline.cells.claims import COMPARING, is_about, swapped, verdict
from faultline.cells.selection import Selection, select
from faultline.observations import measured, remedies
from faultline.stacks import requests
from tests.support import entries

FAILURE = replace(
    entries.FAILURE,
    errors={"torn": "torn", "check": "no graph"},
    variants=(*entries.FAILURE.variants, Variant("checked"), Variant("mended", trainer="sft")),
    claims={},
)
HELPS = Claim("mend it", swap={"remedy": "mended"})
DETECTS = Claim("check it", kind="detects", swap={"remedy": "checked"})
CHANGES = Claim("bf16 matters", kind="changes", swap={"precision": "bf16"})
PRESENT, FAILS, TRAINS, SHOWS = (Claim(f"it {kind}", kind=kind) for kind in ("present", "fails", "trains", "shows"))
KINDS = (HELPS, PRESENT, DETECTS, CHANGES, FAILS, TRAINS, SHOWS)
UPGRADE = Claim("the next release", swap={"stack": "next"})

OK, TORN, CHECK, WRONG = Did("trains"), Did("raises", "torn"), Did("raises", "check"), Did("diverges", "differs")
HUNG, CRASHED, NONE = Did("hangs", "no-progress"), Did("crashes", "SIGABRT"), Did("impossible")

CELL = Cell("example", "broken", "zero2")


@pytest.mark.parametrize(
    ("claim", "broken", "other", "word"),
    [
        (HELPS, TORN, OK, "verified"),
        (HELPS, WRONG, OK, "verified"),
        (HELPS, TORN, TORN, "refuted"),
        (HELPS, OK, TORN, "untested"),
        (HELPS, TORN, None, "untested"),
        (HELPS, Did("raises", "other"), OK, "untested"),
        (DETECTS, TORN, CHECK, "verified"),
        (DETECTS, TORN, OK, "refuted"),
        (DETECTS, OK, CHECK, "refuted"),
        (DETECTS, OK, OK, "untested"),
        (CHANGES, TORN, OK, "verified"),
        (CHANGES, TORN, TORN, "refuted"),
        (CHANGES, OK, OK, "refuted"),
        (PRESENT, TORN, None, "refuted"),
        (PRESENT, OK, None, "untested"),
        (FAILS, TORN, None, "verified"),
        (FAILS, OK, None, "refuted"),
        (TRAINS, OK, None, "untested"),
        (TRAINS, WRONG, None, "refuted"),
        (SHOWS, HUNG, None, "verified"),
        (SHOWS, CRASHED, None, "verified"),
        (SHOWS, WRONG, None, "refuted"),
        (SHOWS, OK, None, "untested"),
    ],
)
def test_one_pair_of_cells_decides_as_the_kind_says(claim, broken, other, word):
    outcomes = {CELL: broken} | ({swapped(FAILURE, claim.swap, CELL): other} if other else {})
    assert verdict(FAILURE, claim, outcomes).word == word


def test_cells_on_both_sides_make_it_conditional():
    mended = replace(CELL, variant="mended")
    outcomes = {CELL: TORN, mended: OK}
    outcomes |= {replace(cell, strategy="ddp"): TORN for cell in (CELL, mended)}
    result = verdict(FAILURE, HELPS, outcomes)
    both = (CELL,), (replace(CELL, strategy="ddp"),)
    assert result.word == "conditional" and (result.supporting, result.against) == both


def test_that_something_trains_is_a_merit_only_where_something_else_shows_the_failure():
    """Breaks when a claim is verified on a stack on which the whole failure trains."""
    shown = {replace(CELL, strategy="ddp"): TORN}
    here = Claim("ZeRO-2 trains", kind="trains", where={"strategy": "zero2"})
    assert verdict(FAILURE, here, {CELL: OK} | shown).word == "verified"
    for none in ({}, {replace(CELL, variant="mended"): TORN}, {replace(CELL, strategy="ddp"): NONE}):
        assert verdict(FAILURE, here, {CELL: OK} | none).word == "untested"
    word = verdict(replace(FAILURE, also_raises=("torn",)), here, {CELL: OK} | shown).word
    assert word == "untested", "another failure's error was taken for its own"


def test_an_upgrade_helps_where_the_cell_failed_before_it():
    """Breaks when an upgrade is praised for what trained before it, or by one stack alone."""
    words = {(TORN, OK): "verified", (TORN, WRONG): "refuted", (OK, OK): "untested", (TORN, NONE): "untested"}
    assert {did: verdict(FAILURE, UPGRADE, {CELL: did[0]}, {CELL: did[1]}).word for did in words} == words
    same = {CELL: TORN}
    assert verdict(FAILURE, UPGRADE, same).word == verdict(FAILURE, UPGRADE, same, same).word == "untested"
    assert verdict(FAILURE, HELPS, same, {replace(CELL, variant="mended"): OK}).word == "untested"


def test_a_trainer_is_compared_with_the_remedy_in_the_same_trainer():
    assert swapped(FAILURE, HELPS.swap, replace(CELL, variant="sft-broken")).variant == "sft-mended"
    assert swapped(FAILURE, HELPS.swap, CELL).variant == "mended"
    outcomes = {replace(CELL, variant="sft-broken"): TORN, replace(CELL, variant="mended"): OK}
    assert verdict(FAILURE, HELPS, outcomes).word == "untested", "another level's remedy was taken for the trainer's"


def test_where_chooses_cells_axis_by_axis():
    chosen = [{}, {"variant": "broken"}, {"strategy": "zero*"}, {"world_size": "2"}]
    others = [{"variant": "sft-*"}, {"strategy": "zero3*"}, {"checkpointing": "reentrant"}]
    others += [{"world_size": "4"}, {"precision": "bf16"}]
    claims = [Claim("it fails", kind="fails", where=where) for where in (*chosen, *others)]
    supporting = [verdict(FAILURE, claim, {CELL: TORN}).supporting for claim in claims]
    assert supporting == [(CELL,)] * len(chosen) + [()] * len(others)


def test_an_unknown_kind_is_a_mistake():
    """Breaks when a claim with a mistyped kind is held against nothing and stays untested."""
    with pytest.raises(ValueError, match="heals"):
        Claim("it heals", kind="heals")


CELLS = st.builds(
    Cell,
    failure=st.sampled_from(["example", "another"]),
    variant=st.sampled_from([variant.name for variant in FAILURE.variants]),
    strategy=st.sampled_from(["ddp", "zero2"]),
    checkpointing=st.sampled_from(CHECKPOINTING[:2]),
    precision=st.sampled_from(["fp32", "bf16"]),
    world_size=st.just(2),
    device=st.just("cpu"),
)
DID = st.builds(Did, st.sampled_from([outcome.value for outcome in Outcome]), st.sampled_from(["", "torn", "check"]))
OUTCOMES = st.dictionaries(CELLS, DID, max_size=30)
CLAIMS = st.sampled_from(KINDS)


@given(CLAIMS, OUTCOMES, st.randoms())
def test_law_a_cell_counts_once_and_only_with_proof_whatever_stands_beside_it(claim, outcomes, random):
    result = verdict(FAILURE, claim, outcomes)
    counted = [*result.supporting, *result.against]
    assert len(counted) == len(set(counted)), "a cell was counted twice"
    for cell in counted:
        assert cell.failure == FAILURE.name and cell.precision == "fp32" and cell.variant.endswith("broken")
        assert outcomes[cell][0] not in ("invalid", "impossible"), "a cell without evidence spoke"
        if claim.swap:
            other = outcomes[swapped(FAILURE, claim.swap, cell)]
            assert other[0] not in ("invalid", "impossible"), "a cell was compared with one without evidence"
    mixed = [pair for pair in outcomes.items() if pair[0].failure == FAILURE.name]
    random.shuffle(mixed)
    again = verdict(FAILURE, claim, dict(mixed))
    assert {*again.supporting} == {*result.supporting} and {*again.against} == {*result.against}
    assert verdict(FAILURE, claim, dict.fromkeys(outcomes, OK)).word in ("refuted", "untested"), "where all trains"
    outcomes = {**outcomes, replace(CELL, strategy="fsdp2"): TORN}
    fails, trains = verdict(FAILURE, FAILS, outcomes), verdict(FAILURE, TRAINS, outcomes)
    assert (fails.supporting, fails.against) == (trains.against, trains.supporting), "where the failure shows"


def doubts(failure, claim):
    """Why a claim can't be put to the test, or isn't."""
    if not ({*claim.where} <= {*NAMES} and {*claim.swap} <= {*NAMES, "remedy", "stack"}):
        return ["an axis that there isn't"]
    cells = set(select(failures(), Selection(failure=(failure.name,))))
    pairs = [(cell, swapped(failure, claim.swap, cell)) for cell in cells if is_about(failure, claim, cell)]
    others = {other for cell, other in pairs if other != cell or "stack" in claim.swap}
    failing = dict.fromkeys(cells, CHECK)
    holds = {
        "it says nothing": claim.text,
        "its source is no link": not claim.source or claim.source.startswith("https://"),
        "`where` matches no cell of the default matrix": pairs,
        "nothing to compare with, or no need to": bool(claim.swap) == (claim.kind in COMPARING),
        "`swap` leads to no cell that is ever run": not claim.swap or others & cells,
        "no run can ever say what becomes of it": verdict(failure, claim, failing, dict(failing)).word != "untested",
        "it is held against a stack that can't tell": remedies.recorded_verdict(failure, claim).word != "untested",
    }
    return [words for words, true in holds.items() if not true]


def test_every_claim_is_put_to_the_test():
    """Breaks when nobody can say what becomes of a claim, or it is held against today's stack of a repaired failure."""
    every = {f"{name}: {key}": doubts(f, f.claims[key]) for name, f in failures().items() for key in f.claims}
    assert not {name: words for name, words in every.items() if words}


OLDER = [name for name, failure in failures().items() if measured.shown_on(failure) != TODAY]


@pytest.mark.parametrize("name", OLDER)
def test_what_trains_today_anyway_is_no_remedy(name):
    """Breaks when a vacuous claim counts: the cell trains, and so does the broken one that it stands beside."""
    failure = failures()[name]
    where = failure.reported.place
    vacuous = Claim("do nothing", kind="trains", where=where)
    assert remedies.recorded_verdict(failure, vacuous).word == "refuted", "judged on a stack that doesn't show it"
    today = replace(failure, history=History())
    assert measured.shown_on(today) == TODAY
    for claim in (vacuous, *failure.claims.values()):
        assert remedies.recorded_verdict(today, claim).word in ("refuted", "untested"), (
            "verified where everything trains"
        )


def test_an_upgrade_is_held_against_the_stack_before_it():
    every = [(f, claim) for f in failures().values() for claim in f.claims.values() if "stack" in claim.swap]
    assert every
    for failure, claim in every:
        assert claim.kind == "helps" and claim.swap["stack"] in requests.named(), claim.text
        assert remedies.tested_on(failure, claim) == failure.reported.stack != claim.swap["stack"], claim.text
        answer = remedies.recorded_verdict(failure, claim)
        only_there = "remedy" in claim.swap and answer.against  # a remedy may be claimed to help there, and not do so
        assert answer.supporting or only_there, f"the older stack fails nowhere, or the newer as well: {claim.text}"
