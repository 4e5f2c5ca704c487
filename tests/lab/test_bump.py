"""The move of pins: what is asked, what is written, and that no step is done twice or left out."""

import shutil
from dataclasses import replace

import pytest

from faultline.base import packages
from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError
from faultline.base.paths import REPROS, ROOT
from faultline.catalogue.loading import failures
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.runs import storage
from lab import bump
from tests.support import entries

PINS = ROOT.joinpath("requirements.txt").read_text()
NAME = "zero3_dummy_loss"
AT_FAULT, CHANGED = "zero3_save_pretrained_empty", "moe_aux_loss_times_world_size"  # in a line of transformers
OLD, WRONG = packages.pinned(ROOT / "requirements.txt"), ("diverges", "differs")


@pytest.mark.parametrize("text", ["", "transformers", "transformers>=5", "rich==15.0.0", "trl==1 trl==2", "trl==../x"])
def test_only_exact_versions_of_the_stack_can_be_moved(text):
    with pytest.raises(UsageError, match=r"such as transformers==5\.24\.0|with its version: transformers==5\.24\.0"):
        bump.parse_versions(text)


def test_other_pins_and_comments_stay_as_they_are():
    """Breaks when a move takes a package for one whose name begins alike, or loses a line."""
    new = {"transformers": "9.9", "pillow": "99.0"}
    changed = [(a, b) for a, b in zip(PINS.splitlines(), bump.move_pins(PINS, new).splitlines(), strict=True) if a != b]
    assert [b for _, b in changed] == ["transformers==9.9", "pillow==99.0"]
    assert bump.move_pins("trl-extra==1\ntrl==1\n", {"trl": "2"}) == "trl-extra==1\ntrl==2\n"


@pytest.fixture
def steps(monkeypatch, tmp_path):
    """What a move calls, in order; its matrix has three cells of one failure, of which one is new and one unsteady."""
    calls, folder = [], tmp_path / "repros" / NAME
    folder.mkdir(parents=True)
    new, unsteady, same = (Cell(NAME, "no_dummy", strategy) for strategy in ("ddp", "zero1", "zero2"))
    did = {new: [WRONG] * 2, unsteady: [WRONG, ("trains", "")], same: [("trains", "")]}

    def matrix(request):
        run = storage.RunFolder(bump.Path(request.results))
        run.path.mkdir()
        for cell in did:
            if cell.id in (request.selection.cells or [each.id for each in did]):
                outcome = did[cell].pop(0)
                verdict = "expected" if outcome[0] == "trains" else "unexpected failure"
                storage.Writer(run).add(entries.entry(cell, *outcome, verdict, stack=OLD | {"transformers": "9.9"}))
        calls.append(f"matrix {len(request.selection.cells)}")

    monkeypatch.setattr(bump, "RESULTS", tmp_path)
    monkeypatch.setattr(bump, "REPROS", folder.parent)
    monkeypatch.setattr(bump, "PINS", tmp_path / "requirements.txt")
    bump.PINS.write_text(PINS)
    monkeypatch.setattr(bump, "ask_is_safe", lambda *_: calls.append("is-safe") or ("NOT SAFE", "results/summary.md"))
    monkeypatch.setattr(bump.matrix, "run", matrix)
    monkeypatch.setattr(bump.replay, "replay", lambda _: calls.append("findings") or ["ddp_backward_differs"])
    monkeypatch.setattr(bump.store, "write", lambda known: calls.append(known.stacks[packages.TODAY].month))
    monkeypatch.setattr(bump.score, "run", lambda: calls.append("score"))
    for module, name in ((bump.record, "run"), (bump.command, "durations"), (bump.command, "readmes")):
        monkeypatch.setattr(module, name, lambda run, name=name: calls.append(name))
    for name in (AT_FAULT, CHANGED):
        shutil.copytree(REPROS / name, folder.parent / name)
    fault = replace(failures()[CHANGED].history.fault, text="else")
    other = replace(failures()[CHANGED], history=replace(failures()[CHANGED].history, fault=fault))
    monkeypatch.setattr(bump, "failures", lambda: {n: failures()[n] for n in (NAME, AT_FAULT)} | {CHANGED: other})
    return calls, new, unsteady


def test_a_move_goes_on_where_it_stopped_and_ends_with_what_a_person_must_decide(steps, monkeypatch, capsys):
    """Breaks when is-safe runs twice, anything is measured on the old versions, what older stacks do changes, or what
    isn't steady is blessed."""
    calls, new, unsteady = steps
    for _ in range(2):
        assert bump.run("transformers==9.9", 1) == EXIT_AS_EXPECTED
        assert calls == ["is-safe"] and "transformers==9.9\n" in bump.PINS.read_text()
    monkeypatch.setattr(bump.requests, "installed", lambda: ("transformers==9.9",))
    assert bump.run("transformers==9.9", 1) == EXIT_UNEXPECTED
    assert calls[1:] == ["matrix 0", "matrix 2", "findings", "run", packages.TODAY, "score", "durations", "readmes"]
    assert 'version = "9.9"' in (bump.REPROS / AT_FAULT / "history.toml").read_text()
    printed = capsys.readouterr().out
    assert "is-safe says NOT SAFE" in printed and "findings/ddp_backward_differs" in printed
    assert f"{CHANGED}: its line at fault is 0 times in transformers/trainer.py" in printed
    assert f"{NAME}, 1 cell: trains before, diverges (differs) now" in printed
    assert f"{unsteady.id} doesn't do the same twice" in printed
    rules = expected.load(bump.REPROS / NAME / "expected.toml")
    now = [expected.expect(rules, cell, OLD | {"transformers": "9.9"}).outcome for cell in (new, unsteady)]
    assert now == ["diverges", "trains"] and expected.expect(rules, new, OLD).outcome == "trains"
