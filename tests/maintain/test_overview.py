"""The catalogue's table and the README's figures: whole, up to date, and right about what helps first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from faultline.catalogue import REMEDIES, Claim
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did
from faultline.cells.cell import Cell
from faultline.maintain import overview
from faultline.observations import measured, verdicts


def between(file, markers):
    """What stands between two markers of a file."""
    begin, end = markers
    return file.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()


def test_the_catalogue_and_the_readme_say_what_the_rules_say():
    """Breaks when a page is of older rules, its table is too wide to read, or a sentence leaves a verdict out."""
    assert between(overview.CATALOGUE, overview.FAILURES) == overview.table(), "faultline maintain readmes"
    assert between(overview.README, overview.COUNTS) == overview.counts(), "faultline maintain readmes"
    assert between(overview.MATRIX, overview.STRATEGIES) == overview.families(), "faultline maintain readmes"
    assert max(map(len, overview.table().splitlines())) <= 470
    numbers = [int(word) for word in overview.counts().replace(":", "").split() if word.isdigit()]
    assert numbers[0] == len(failures()) and numbers[1] == sum(numbers[2:]) > 100


def test_a_line_has_the_places_the_fix_and_the_first_remedy():
    """Breaks when a silent failure looks like an error, or a refuted remedy like one that helps."""
    lines = {row.split("](")[0][3:]: row.strip("| ").split(" | ") for row in overview.table().splitlines()[2:]}
    assert [*lines] == [*failures()]
    nowhere = [each.name for each in failures().values() if not verdicts.endings(each) and not each.reported]
    assert not nowhere, "a record that no stack here shows is listed like the others"
    _, _, where, fixed, helps, _ = lines["zero12_manual_ga_keeps_last_microbatch"]
    assert (where, fixed) == ("silent: `zero1*`, `zero2*`", "not fixed")
    assert helps.startswith("`engine.set_gradient_accumulation_boundary(last)`")
    assert lines["grpo_lora_no_grad"][3] == "trl 0.16.0"
    assert lines["rank0_only_save"][4] == "in some places: save on all ranks"


@pytest.mark.parametrize("name", list(failures()))
def test_the_first_remedy_is_a_verified_one_if_there_is_one(name):
    """Breaks when the table recommends what was refuted, or what helps only in places before what always helps."""
    failure = failures()[name]
    remedies = [claim for claim in failure.claims.values() if claim.kind in REMEDIES]
    words = {claim.text: verdicts.known(failure, claim).word for claim in remedies}
    first = overview._line(failure)[4]
    if "verified" in words.values():
        assert words[first] == "verified"
    elif "conditional" in words.values():
        assert words[first.removeprefix("in some places: ")] == "conditional" and first not in words
    else:
        assert first == ""


def test_what_the_broken_cell_has_already_does_not_help(monkeypatch):
    """Breaks when a useless remedy, or a claim that is no remedy, counts as help."""
    failure = replace(
        failures()["zero2_ga_wrong_gradient"],
        claims={
            "a": Claim("wear a hat", kind="present"),
            "b": Claim("it fails", kind="fails"),
            "c": Claim("it trains under DDP", kind="trains", where={"strategy": "ddp"}),
        },
    )
    shown = {Cell(failure.name, "broken", "zero2"): Did("diverges", "differs")}
    trains = {Cell(failure.name, "broken", "ddp"): Did("trains")}
    monkeypatch.setattr(measured, "outcomes", lambda failure, stack="today": shown | trains)
    assert overview._line(failure)[4] == ""
    monkeypatch.setattr(overview, "failures", lambda: {failure.name: failure})
    assert overview.counts() == "1 failures and 3 claims: 1 verified, 1 refuted, 1 conditional."
