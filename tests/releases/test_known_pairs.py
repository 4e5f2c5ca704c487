"""is-safe --known answers from recorded runs: it says what they say, and UNKNOWN of what nobody ran."""

import re

import pytest

from faultline.base.paths import PACKAGE, ROOT
from faultline.observations import measured, store
from faultline.releases import recorded
from faultline.releases.changes import ChangeKind, Safety

MONTH, BEFORE = "2026-06-01", "2026-05-01"


def test_a_pair_of_months_is_answered_without_a_run(asked, monkeypatch):
    """Breaks when a cell runs, an environment is made, or a regression that was recorded is SAFE."""
    monkeypatch.setattr("faultline.runs.campaigns.begin", lambda *_: pytest.fail("it measures"))
    code, out, _ = asked("is-safe", MONTH, "--base", BEFORE, "--known")
    assert code == 1 and out.startswith("NOT SAFE: transformers 5.7.0 → 5.9.0, trl 1.3.0 → 1.5.1")
    assert "of recorded runs, each cell once: nothing ran now" in out
    code, out, _ = asked("is-safe", "today", "--base", "2026-11-01", "--known")
    assert code == 0 and out.startswith(f"SAFE: transformers 5.22.1 → {measured.pinned()['transformers']}")
    assert asked("is-safe", BEFORE, "--base", BEFORE, "--known")[1].startswith("NOTHING TO COMPARE")


@pytest.mark.parametrize("words", [["trl==0.0.1"], ["trl>=1.0"], [MONTH, "--base", "trl==0.0.1"], ["2026-04-15"]])
def test_what_nobody_ran_is_unknown(asked, words):
    code, out, _ = asked("is-safe", *words, "--known")
    assert code == 3 and out.startswith("UNKNOWN") and "is recorded" in out


def test_a_past_upgrade_whose_answer_is_known_is_told_of(asked):
    """Breaks when nobody who asks learns what a replay of the same upgrade answered, or all of pip is listed."""
    code, out, _ = asked("is-safe", "deepspeed==0.18.9", "--base", "deepspeed==0.18.3", "--known")
    assert code == 3 and "answers NOT SAFE by grpo_lora_no_grad/*broken/ddp" in out
    code, out, _ = asked("is-safe", "trl==0.0.1", "--known")
    assert code == 3 and "pytest" not in out and "deepspeed" in out
    assert "trl>=1.0 is no version" in asked("is-safe", "trl>=1.0", "--known")[1]


def test_few_failures_are_not_safe(asked, monkeypatch):
    """Breaks when one recorded failure that trains on both stands for all of them."""
    rows = store.rows
    monkeypatch.setattr(store, "rows", lambda name: rows(name) if name == "zero3_dummy_loss" else {})
    code, out, _ = asked("is-safe", "today", "--base", "2026-11-01", "--known")
    assert code == 3 and out.startswith("UNKNOWN") and "1 have cells that were recorded on both" in out
    assert asked("is-safe", "today", "--base", "2026-11-01", "--known", "--failure", "zero3_dummy_loss")[0] == 0


@pytest.mark.slow
def test_each_pair_of_months_has_a_line_that_says_what_the_command_says():
    text = recorded.monthly_table()
    [line] = [line for line in text.splitlines() if line.startswith(f"| {BEFORE} | {MONTH} |")]
    cells = [cell for name in store.failure_names() for cell in store.rows(name)]
    known = recorded.between(store.stacks()[BEFORE], store.stacks()[MONTH], cells).comparison
    assert f"| {known.verdict} | {known.compared:,} |" in line
    grave = sum(change.kind is ChangeKind.DIVERGES for change in known.changes)
    assert f"{grave} `diverges now`" in line


def test_what_pages_show_is_known(asked):
    """Breaks when an example of --known has no answer any more, as after a move of the pins."""
    texts = [(ROOT / "docs" / "releases.md").read_text("utf-8"), (PACKAGE / "cli" / "use.py").read_text("utf-8")]
    shown = {line for text in texts for line in re.findall(r"faultline (is-safe .* --known)$", text, re.MULTILINE)}
    assert len(shown) >= 2
    for line in shown:
        assert asked(*line.split())[0] in (0, 1), f"{line} says UNKNOWN"


def test_a_replay_outweighs_a_few_recorded_cells(asked):
    """Breaks when records of a few cells say SAFE of an upgrade that is known not to be."""
    unsafe = [bump for bump in recorded.past_upgrades().values() if bump.verdict is Safety.NOT_SAFE]
    assert len(unsafe) > 9
    for bump in unsafe:
        failure = bump.cells[0].partition("/")[0]
        words = ("is-safe", *bump.requirements.split(), "--base", bump.base, "--failure", failure, "--known")
        assert asked(*words)[0] in (1, 3), bump.name
