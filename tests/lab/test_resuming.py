"""An exploration that goes on is the one that was begun: its seed, strategies and minutes, and nothing runs twice."""

import contextlib
import json
import sys
from pathlib import Path

import pytest

from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.runs import storage
from faultline.stacks.environments import Environment
from lab.explore import command, overview
from lab.explore.case import Case
from lab.explore.findings import About, Finding, Seen
from lab.programs.program import Program
from tests.support.entries import entry

TWO = ("ddp", "zero2")
VERSIONS = {"deepspeed": "0.19.8", "torch": "2.13.0+cpu"}


@pytest.fixture
def explored(tmp_path, monkeypatch):
    """What an exploration runs, without ranks: every cell trains; after `until` cells somebody interrupts it."""
    for name in ("new_run", "latest_run"):
        monkeypatch.setattr(getattr(storage, name), "__defaults__", (tmp_path,))

    def explored(until=None, **request):
        ran = []

        def measure(batches, workers, engine, wrong, on_result):
            [batch] = batches
            with contextlib.closing(storage.Writer(batch.folder)) as writer:
                for cell in batch.cells:
                    if until is not None and len(ran) == until:
                        raise KeyboardInterrupt
                    ran.append(cell)
                    writer.add(entry(cell, stack={}))
                    on_result(entry(cell, stack={}))

        monkeypatch.setattr(command.measurement, "measure", measure)
        try:
            assert command.run(command.Request(**request)) == EXIT_AS_EXPECTED
        except KeyboardInterrupt:
            assert until is not None
        return ran

    return explored


def numbers(folder):
    [file] = folder.glob(f"explore-*/{overview.NUMBERS}")
    return json.loads(file.read_text())


@pytest.mark.slow
def test_an_exploration_goes_on_where_it_was_interrupted(explored, tmp_path):
    """Breaks when `--resume` draws other programs than the exploration that it goes on with, or runs cells twice."""
    asked = {"specs": 12, "seed": 5, "strategies": TWO}
    first = explored(until=7, **asked)
    assert numbers(tmp_path)["seed"] == 5
    [page] = tmp_path.glob("explore-*/findings/README.md")
    assert "| 5 | 0 | 12 |" in page.read_text(), "what there is of it has no page"
    rest = explored(resume=True)
    assert len(first) == 7 and not {*first} & {*rest}
    assert {cell.strategy for cell in rest} <= {*TWO}
    assert numbers(tmp_path)["seed"] == 5 and numbers(tmp_path)["programs"] == 12
    more = explored(resume=True, specs=16)
    assert more and not {*more} & {*first, *rest} and numbers(tmp_path)["programs"] == 16
    assert {*explored(**asked)} == {*first, *rest}, "in one go they are the same"


@pytest.mark.slow
def test_plain_loops_alone(explored, tmp_path):
    """Breaks when `--loops` draws trainers, or an exploration that goes on draws them again."""
    loops = explored(specs=20, seed=5, strategies=TWO, loops=True)
    more = explored(resume=True, specs=30)
    assert numbers(tmp_path)["programs"] == 30 and not {*loops} & {*more}
    usual = {*explored(specs=30, seed=5, strategies=TWO)}
    assert {*loops, *more} & usual and usual - {*loops, *more}, "they are those of the usual ones that are loops"


def test_an_exploration_has_a_page_of_its_own_also_without_torch(explored, monkeypatch, tmp_path, capsys):
    """Breaks when what it came to has to be read from the terminal, or one on a fleet, without torch, can't end."""
    monkeypatch.setitem(sys.modules, "lab.explore.publishing", None)
    monkeypatch.setattr(command.environments, "chosen", lambda *_: Environment("/elsewhere/python", ""))
    monkeypatch.setattr(command.engines, "check_device", lambda *_: None)
    monkeypatch.setattr(command.environments.Environment, "versions", property(lambda stack: VERSIONS))
    explored(specs=4, seed=5, strategies=TWO)
    out = capsys.readouterr().out
    [page] = tmp_path.glob("explore-*/findings/README.md")
    assert "programs an hour: " in out and "findings/README.md\nThere is no finding. " in out
    assert "0 findings, 0 of them new." in page.read_text() and "\n| 5 | " in page.read_text()


def test_torchs_build_is_no_change(monkeypatch):
    """Breaks when `--since` draws what is near torch first, as one stack names torch's build and the other doesn't."""
    monkeypatch.setattr(command.environments, "resolve", lambda request: "deepspeed==0.19.7\ntorch==2.13.0\n")
    monkeypatch.setattr(command.environments.Environment, "versions", property(lambda stack: VERSIONS))
    assert command.changed_packages(command.Request(since="deepspeed==0.19.7"), Environment("python", "")) == {
        "deepspeed"
    }


@pytest.mark.parametrize(("version", "first"), [("0.19.7", True), ("0.19.8", False)])
def test_findings_of_other_versions_run_first(explored, monkeypatch, capsys, version, first):
    """Breaks when a finding that another release has mended still hides what is near it."""
    case = Case(Program.of(3, {"accumulate": 3}), "zero2")
    seen = Seen(
        "differs", "diverges", "differs", "", {"zero2": "diverges (differs)"}, {"deepspeed": version, "torch": "2.13.0"}
    )
    finding = Finding(Path("one"), case, seen, About("A title", cause="somewhere"))
    monkeypatch.setattr(command.findings, "every", lambda *folder: [finding])
    monkeypatch.setattr(command.environments.Environment, "versions", property(lambda stack: VERSIONS))
    ran = explored(specs=2, seed=5, strategies=TWO)
    assert (ran[:1] == [case.cell]) == first
    answer = capsys.readouterr()
    assert ("one: diverges (differs) before, trains now" in answer.out) == first
    assert ("1 finding of other versions: their cells run first" in answer.err) == first


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"seed": 6}, "has --seed 5: leave --seed out"),
        ({"strategies": ("ddp",)}, "has --strategy ddp,zero2: leave --strategy out"),
        ({"since": "deepspeed==0.19.7"}, "has --since left out"),
        ({}, "is finished: a larger --minutes or --specs goes on with it"),
        ({}, "no explore run to resume"),
    ],
)
def test_an_exploration_goes_on_as_it_was_asked_for(explored, given, words):
    """Breaks when options that an exploration doesn't have are taken without a word, or it has ended and nothing is."""
    if "no explore run" not in words:
        explored(specs=2, seed=5, strategies=TWO)
    with pytest.raises(UsageError, match=words):
        explored(resume=True, **given)
