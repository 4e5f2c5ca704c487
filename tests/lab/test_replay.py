"""Findings are replayed, and a bisect says since when they show."""

import tomllib
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, NeverReady, UsageError
from faultline.releases.bisection import boundary
from faultline.runs import storage
from faultline.stacks.index import Release
from lab.explore import findings, replay
from lab.explore.case import Case
from lab.explore.findings import About, Finding, Seen
from lab.explore.shrinking import Shrunk
from lab.programs.program import Program
from tests.support.entries import entry
from tests.support.judged import RIGHT, WRONG, judged, raises

WHERE = {"ddp": "trains", "zero2": "diverges (differs)"}
CASE = Case(Program.of(1, {"clip": "norm"}), "zero2")
KEPT = Finding(
    Path("one"),
    CASE,
    Seen("differs", "diverges", "differs", "by 90 %", WHERE, {"torch": "2.13.0"}, 3),
    About("One", "new"),
)


@pytest.fixture
def replayed(tmp_path, monkeypatch, page):
    """Replays the finding where each strategy does what it is given."""

    def go(did, **request):
        def measure(batches, workers, wrong, on_result):
            [batch] = batches
            assert {cell.strategy for cell in batch.cells} == {*WHERE}
            for cell in batch.cells:
                on_result(judged(cell, did[cell.strategy]))

        finding = replace(KEPT, folder=tmp_path / KEPT.name)
        monkeypatch.setattr(findings, "every", lambda: [finding])
        monkeypatch.setattr(storage.new_run, "__defaults__", (tmp_path / "results",))
        monkeypatch.setattr(replay.measurement, "measure", measure)
        (tmp_path / KEPT.name).mkdir(exist_ok=True)
        return replay.run(replay.Request(**request))

    return go


def test_what_changed_is_said_and_written_if_asked(replayed, capsys, tmp_path):
    """Breaks when a release that mends a finding goes unnoticed, or a replay raises an alarm where nothing changed."""
    assert replayed({"ddp": RIGHT, "zero2": WRONG}) == EXIT_AS_EXPECTED
    assert "one: new, as seen" in capsys.readouterr().out
    assert replayed({"ddp": RIGHT, "zero2": RIGHT}) == EXIT_UNEXPECTED
    assert "  zero2: diverges (differs) before, trains now" in capsys.readouterr().out
    assert replayed({"ddp": RIGHT, "zero2": RIGHT}, write=True) == EXIT_AS_EXPECTED
    assert '"zero2": "trains"' in (tmp_path / "one" / findings.SEEN).read_text()
    assert "1 finding, 1 of them new." in (tmp_path / "README.md").read_text(), "its page is another one"


def test_a_finding_is_named_by_its_folder_or_as_one_that_is_kept(tmp_path, replayed):
    """Breaks when what was found has to be copied to be replayed, or a typing error replays nothing and passes."""
    shrunk = Shrunk(CASE, entry("diverges", CASE.cell.id, signature="differs"), {}, minimal=True)
    made = findings.write(tmp_path, shrunk, steady=3)
    assert findings.by_name([str(made.folder)]) == [made]
    with pytest.raises(UsageError, match="is not the folder of a finding"):
        findings.by_name([str(tmp_path)])
    with pytest.raises(UsageError, match="no finding two"):
        replayed({}, names=("two",))


def test_findings_that_are_kept_can_be_read():
    """Breaks when a folder of findings/ has no status, or a spec that no program is."""
    for each in findings.every():
        assert each.case.strategy in each.seen.where
        assert each.about.status != findings.UNREAD, f"{each.name}: nobody looked into it"
        assert each.about.status == "new" or each.about.links or each.about.failure
        assert each.about.cause and each.about.searched, f"{each.name}: nobody looked into it"
        looked = len(each.about.searched) > 2 and each.about.nearest
        assert each.about.status != "new" or looked, f"{each.name}: one search is no search"


# Since which release a finding shows: what is asked for, and how the answer reads.

RELEASES = [Release(f"1.{number}", f"2026-0{number + 1}-01") for number in range(6)]


@pytest.mark.parametrize(
    ("did", "said", "kept"),
    [
        (
            [False, False, None, True, True, True],
            "introduced by x 1.3 (2026-04-01): 1.1 (2026-02-01) doesn't show it",
            "since x 1.3",
        ),
        ([True] * 6, "every x that could be tried shows it, 1.0 (2026-01-01) the oldest", "in every x from 1.0 on"),
        ([True] * 5 + [False], "the newest x doesn't show it", ""),
        ([None] * 6, "no x could be tried", ""),
    ],
)
def test_the_answer_names_both_sides(did, said, kept):
    """Breaks when a release is blamed that could not be tried, or nothing is said of the one before."""
    edge = boundary(len(RELEASES), did.__getitem__)
    assert replay.answer("x", RELEASES, edge) == said
    assert replay.since("x", RELEASES, edge) == kept


def test_since_when_is_kept_once(tmp_path):
    """Breaks when a second bisect leaves two answers, or what a person wrote is lost."""
    file = tmp_path / "finding.toml"
    file.write_text('title = "A title"\nstatus = "new"\ncause = "somewhere"\nlinks = [\n  "a",\n]\n')
    for words in ("since x 1.3", 'since "x" 1.2'):
        findings.write_since(tmp_path, words)
    made = msgspec.convert(tomllib.loads(file.read_text()), findings.About)
    assert made == findings.About("A title", "new", "somewhere", since='since "x" 1.2', links=("a",))


def test_a_release_on_which_no_rank_starts_is_passed_over(tmp_path, monkeypatch, capsys, page):
    """Breaks when one old release ends a bisect, or releases are tried that are newer than where it was seen."""
    made = findings.by_name(["fsdp2_adafactor_raises"])[0]
    releases = [
        Release(version, f"2026-0{month}-01") for month, version in enumerate(("2.11", "2.12", "2.13.0", "2.14"), 1)
    ]

    def measure(batches, workers, on_result):
        [batch] = batches
        release = batch.stack
        if release == "2.12":
            raise NeverReady("No module named 'setuptools'")
        on_result(judged(batch.cells[0], raises("") if release == "2.13.0" else RIGHT))

    monkeypatch.setattr(storage.new_run, "__defaults__", (tmp_path,))
    monkeypatch.setattr(replay.index, "releases", lambda package: releases)
    monkeypatch.setattr(replay.environments, "ready", lambda requirements: requirements[0].removeprefix("torch=="))
    monkeypatch.setattr(replay.requests, "parse", lambda text: [text])
    monkeypatch.setattr(replay.measurement, "measure", measure)
    written = []
    monkeypatch.setattr(findings, "write_since", lambda folder, words: written.append((folder.name, words)))
    replay.bisect((made.name,), "torch")
    out = capsys.readouterr().out
    assert "torch==2.12: this stack can't run the suite: No module named 'setuptools'" in out
    assert "introduced by torch 2.13.0" in out and "2.14" not in out
    assert written == [(made.name, "since torch 2.13.0")]


@pytest.mark.parametrize(("names", "package"), [((), "torch"), (("a", "b"), "torch"), (("a",), "deepsped")])
def test_a_bisect_is_about_one_finding_and_a_package_of_the_stack(names, package):
    with pytest.raises(UsageError):
        replay.bisect(names, package)
