"""is-safe and the replay as commands: what runs on which stack, how often, and what the exit code says."""

import json

import pytest
from packaging.requirements import Requirement

from faultline.base import packages
from faultline.base.errors import EXIT_UNDECIDED, EXIT_UNEXPECTED, EXIT_USAGE, NeverReady, UsageError
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells import selection
from faultline.cells.selection import Selection
from faultline.observations import measured
from faultline.releases import coverage, given_stacks, is_safe, recorded, sampling
from faultline.releases.changes import Safety
from faultline.releases.code_changes import Unit
from faultline.releases.coverage import Reach
from faultline.runs import cache, campaigns, measurement, storage
from faultline.runs.cache import Cache
from faultline.runs.oracle import Judgement
from faultline.stacks import requests
from faultline.stacks.environments import Environment, Uninstallable
from lab.proofs import upgrades
from tests.support import entries

BASE = "torch==2.13.0+cpu\ntransformers==5.23.0\ntrl==1.16.0\n"
NARROW = ("--failure", "grpo_lora_no_grad", "--strategy", "zero2", "--precision", "fp32", "--world", "2")
TRAINS, RAISES = Judgement(Outcome.TRAINS), Judgement(Outcome.RAISES, "other", "RuntimeError: Output 0 of Split", 0)


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """Stacks without environments: `does` maps trl's version to what cells do, in turn; gives the cells run on each."""
    root = tmp_path / "results"
    for function in (storage.new_run, storage.latest_run, storage.runs):
        monkeypatch.setattr(function, "__defaults__", (root,))
    done = []
    does = {"1.16.0": [TRAINS], "1.12.0": [TRAINS], "1.13.0": [TRAINS]}

    def ready(stack, lock=""):
        if any("99" in text for text in stack.requirements):
            raise Uninstallable("No solution found: there is no trl==99.0")  # codespell:ignore found
        wanted = next((text for text in stack.requirements if text.startswith("trl==")), "trl==1.16.0")
        made = lock or BASE.replace("trl==1.16.0", wanted)
        return Environment(made.split("trl==")[1].split()[0], made)

    def measure(batches, workers, engine, on_result=None):
        [batch] = batches
        python = batch.stack.python
        answer = does[python]
        if answer is NeverReady:
            raise NeverReady("ImportError: no such name")
        done.append((python, len(batch.cells)))
        judged = answer[min(sum(name == python for name, _ in done), len(answer)) - 1]
        entries.played(batch.folder, batch.cells, judged, *filter(None, (batch.keep and batch.keep.add, on_result)))
        batch.folder.describe(stack="stack")

    monkeypatch.setattr(campaigns, "ready", ready)
    monkeypatch.setattr(campaigns, "locked", lambda stack: ready(stack).lock)
    monkeypatch.setattr(measurement, "measure", measure)
    monkeypatch.setattr(cache, "of", lambda environment, device, again=0, here=True: Cache(environment.lock, again))
    return root, does, done


UNIT = Unit("trl", "trl/a.py", "f")


@pytest.fixture
def reached(monkeypatch):
    """Say what cells execute by a function of them; gives what had run whenever that was asked, and the cells."""

    def reached(covers, done=()):
        asked = []

        def of(both, packages, cells, plain, workers):
            asked.append((list(done), cells))
            return covers(cells)

        monkeypatch.setattr(coverage, "measure_coverage", of)
        return asked

    return reached


def answer_in(root):
    [file] = root.glob("is-safe-*/verdict.json")
    return json.loads(file.read_text())


def test_a_safe_candidate(lab, asked):
    """Breaks when a harmless release is reported, or measured more than once, or SAFE doesn't say what it is worth."""
    code, out, errors = asked("is-safe", "trl==1.12.0", *NARROW)
    assert code == 0 and out.startswith("SAFE: trl 1.16.0 → 1.12.0 (against your installed stack)\n")
    root, _, done = lab
    answer = answer_in(root)
    assert f"at most {answer['cells']} cells on the candidate, and 1 on the baseline" in errors[1]
    assert "no cell ran under single, ddp*" in out
    assert f"{answer['cells'] - 1} others train on the candidate, so they can't have got worse" in out
    cells, packages = answer["cells"], [{"name": "trl", "before": "1.16.0", "after": "1.12.0"}]
    assert answer["strategies"] == ["zero2"] and answer["verdict"] == "SAFE" and answer["packages"] == packages
    assert done == [("1.12.0", cells), ("1.16.0", 1)], "what trains ran on the baseline, or not what is broken there"
    assert answer["compared"] == 1 and answer["trained"] == cells - 1 > 0
    assert {file.name for file in root.glob("is-safe-*/*.*")} >= {"summary.md", "verdict.json"}


def test_a_bad_candidate_is_measured_again_and_nothing_twice(lab, asked):
    """Breaks when a regression isn't confirmed on both stacks, or anything else is measured again."""
    root, does, done = lab
    does["1.12.0"] = [RAISES]
    code, out, _ = asked("is-safe", "trl==1.12.0", *NARROW)
    assert code == EXIT_UNEXPECTED and out.startswith("NOT SAFE") and "Output 0 of Split" in out
    answer = answer_in(root)
    cells = answer["cells"]
    assert done == [("1.12.0", cells), ("1.16.0", cells), ("1.16.0", 3), ("1.12.0", 3)]
    [group] = answer["groups"]
    assert group["kind"] == "regressed" and len(group["cells"]) == cells
    assert group["repeat"].endswith("--stack 'trl==1.12.0'")
    first = list(done)
    code, out, errors = asked("is-safe", "trl==1.12.0", *NARROW)
    assert code == EXIT_UNEXPECTED and out.startswith("NOT SAFE") and done == first
    assert f"{cells} of {cells} cells were measured before; --fresh runs them again" in errors
    _, out, errors = asked("is-safe", "trl==1.13.0", *NARROW)
    assert f"{cells} of {cells} cells ran on both stacks" in out, "what costs nothing isn't compared"
    assert {name for name, _ in done[len(first) :]} == {"1.13.0"}
    assert f"at most {cells} cells on the candidate, and 0 on the baseline" in errors[1], "what is known is foreseen"


@pytest.mark.parametrize(("name", "runs"), [("empty-gradient", 1), ("other", 6)])
def test_of_cells_that_fail_as_recorded_a_sample_runs_on_the_baseline(lab, asked, monkeypatch, name, runs):
    """Breaks when what every night measures on today's pins runs again, or another failure is taken for it."""
    root, does, done = lab
    monkeypatch.setattr(measured, "pinned", lambda: {"trl": "1.16.0"})
    does["1.12.0"] = does["1.16.0"] = [Judgement(Outcome.RAISES, name, "RuntimeError: 0 != 48", 0)]
    broken = ("--failure", "zero3_dummy_loss", "--strategy", "zero3", "--variant", "broken", "--world", "2")
    code, out, _ = asked("is-safe", "trl==1.12.0", *broken)
    assert code == 0 and done == [("1.12.0", 6), ("1.16.0", runs)] and answer_in(root)["recorded"] == 6 - runs
    assert (f"{6 - runs} others fail as they are recorded to" in out) == (runs < 6)


def test_the_first_regression_may_end_it(lab, asked):
    """Breaks when --fail-fast runs on, doesn't confirm what it ends with, or hides how much did not run."""
    root, does, done = lab
    does["1.12.0"] = [RAISES]
    code, out, errors = asked("is-safe", "trl==1.12.0", *NARROW, "--fail-fast")
    answer = answer_in(root)
    assert code == EXIT_UNEXPECTED and answer["cells"] == answer["compared"] == answer["changed"] == 1
    assert [count for _, count in done[2:]] == [1, 1], "the cell that ended it runs again on both stacks"
    assert f"--fail-fast: {done[0][1] - 1} cells did not run" in out
    assert any(line.startswith("first regression, ") and "Output 0 of Split" in line for line in errors)


@pytest.mark.parametrize(("trl", "recorded"), [([TRAINS], 1), ([RAISES], 0), (NeverReady, 0)])
def test_a_first_regression_does_not_wait_for_a_recording(lab, asked, monkeypatch, reached, trl, recorded):
    """Breaks when what cells execute is recorded for minutes, and one cell of each failure could have said no."""
    root, does, done = lab
    does["1.12.0"] = trl
    recordings = reached(lambda cells: Reach(frozenset([UNIT])), done)
    monkeypatch.setattr(is_safe.executed, "lacking", lambda _, cells: [*cells] + [cells[0]] * is_safe.FEW)
    code, out, _ = asked("is-safe", "trl==1.12.0", *NARROW, "--fail-fast")
    assert len(recordings) == recorded
    if recorded:
        assert recordings[0][0] == done[:1] and code == 0 and done[0][1] < answer_in(root)["cells"]
    elif trl == [RAISES]:
        assert [name for name, _ in done[:2]] == ["1.12.0", "1.16.0"], "a few cells ran on both"
        assert code == EXIT_UNEXPECTED and answer_in(root)["cells"] == 1
    else:
        assert not done and code == EXIT_UNDECIDED and "--fail-fast" not in out


@pytest.mark.parametrize("how", [(), ("--affected",), ("--all",), ("--variant", "*broken")])
def test_cells_that_execute_nothing_of_what_differs_are_a_sample_unless_they_are_named(lab, asked, reached, how):
    """Breaks when what has no part of an upgrade runs, it is hidden that it didn't, or a named cell doesn't run."""
    one = frozenset([UNIT])
    recordings = reached(lambda cells: Reach(one, {cells[0]: one}, {cells[0]: 1}, apart=frozenset(cells[1:])))
    code, out, _ = asked("is-safe", "trl==1.12.0", *NARROW, *how)
    [(_, seen)] = recordings
    apart, whole = len(seen) - 1, how[:1] in (("--all",), ("--variant",))
    sample = apart if whole else -(-apart // sampling.TENTH)
    answer = answer_in(lab[0])
    assert code == 0 and answer["cells"] == 1 + sample and (whole or 1 + sample < len(seen))
    assert lab[2][0] == ("1.12.0", answer["cells"])
    assert "the cells execute 1 of 1 changed function of trl" in out
    words = f"{apart} cells execute nothing of trl: {sample} of them ran as a sample"
    if how == ("--affected",):
        words = f"{sample} of the {apart} others are a sample"
    assert "execute nothing" not in out if whole else words in out


@pytest.mark.parametrize(("trl", "code", "recorded"), [([TRAINS], 0, 1), (NeverReady, EXIT_UNDECIDED, 0)])
def test_the_candidate_is_recorded_once_its_cells_ran(lab, asked, monkeypatch, reached, trl, code, recorded):
    """Breaks when the first regression waits for a recording, or a release that can't start is started once more."""
    root, does, done = lab
    does["1.12.0"] = trl
    after = []

    def of(environment, cells, folders, workers):
        after.append(done[-1][0])
        return {cell: frozenset({("trl/a.py", "f")}) for cell in cells}

    reached(lambda cells: Reach(frozenset([UNIT]), near=cells))
    monkeypatch.setattr(coverage.executed, "of", of)
    assert asked("is-safe", "trl==1.12.0", *NARROW)[0] == code
    assert after == ["1.16.0"] * recorded
    if recorded:
        assert answer_in(root)["reach"] == {"trl": {"functions": [1, 1], "bodies": [0, 0], "missed": []}}


def test_what_a_release_that_cannot_start_executes_is_not_known(lab, asked, reached):
    """Breaks when a pass of its own ends the question that the measurement answers."""

    def never(cells):
        raise NeverReady("ImportError: no such name")

    reached(never)
    code, out, _ = asked("is-safe", "trl==1.12.0", *NARROW, "--affected")
    assert code == 0 and "what the cells execute isn't known, so all of them ran" in out


@pytest.mark.parametrize("how", [(), ("--fail-fast",)])
def test_a_flake_is_unknown(lab, asked, how):
    """Breaks when what happened once counts as a change of the candidate, or as nothing where it ended a comparison."""
    lab[1]["1.12.0"] = [RAISES, TRAINS]
    code, out, _ = asked("is-safe", "trl==1.12.0", *NARROW, *how)
    assert code == EXIT_UNDECIDED and out.startswith("UNKNOWN") and "not the same when repeated" in out


@pytest.mark.parametrize(
    ("requirements", "trl", "expected"),
    [("trl==99.0", None, "there is no trl==99.0"), ("trl==1.12.0", NeverReady, "ImportError: no such name")],
)
def test_a_stack_that_cannot_be_had_is_unknown(lab, asked, requirements, trl, expected):
    """Breaks when an unknown version is a crash, a mistake in the question, or found out after minutes of cells."""
    root, does, done = lab
    does["1.12.0"] = trl
    code, out, _ = asked("is-safe", requirements, *NARROW)
    assert code == EXIT_UNDECIDED and expected in out and out.startswith("UNKNOWN") and "--fail-fast" not in out
    assert expected in answer_in(root)["unusable"]
    assert trl or not done, "cells ran although there was nothing to compare them with"


@pytest.mark.parametrize(
    "argv",
    [
        ("trl==1.16.0",),
        ("--base", "trl==1.12.0 peft==0.21.0", "--to", "peft==0.21.0"),
        ("--base", "old.txt", "--to", "old.txt"),
        ("--to", "loose.txt"),
        ("trl<=1.16.0",),  # as only the resolver knows
    ],
)
def test_what_changes_nothing_is_no_verdict_and_makes_no_environment(lab, asked, argv, monkeypatch, tmp_path):
    """Breaks when two stacks that are one take minutes, or are called SAFE although nothing was compared."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(requests, "installed", lambda: tuple(BASE.split()))
    monkeypatch.setattr(campaigns, "locked", lambda stack: BASE)
    monkeypatch.setattr(campaigns, "ready", pytest.fail)
    (tmp_path / "old.txt").write_text("trl==1.12.0\npeft>=0.1\n")
    (tmp_path / "loose.txt").write_text("trl>=1.0\n")
    code, out, _ = asked("is-safe", *argv, *NARROW)
    assert code == 0 and out.startswith("NOTHING TO COMPARE") and "neither SAFE nor NOT SAFE" in out and not lab[2]
    assert answer_in(lab[0])["identical"]


LOCK = """version = 1
[[package]]
name = "trl"
version = "1.12.0"
[[package]]
name = "torch"
version = "2.13.0+cu130"
"""


def test_the_files_that_people_have_are_sides(lab, asked, monkeypatch, tmp_path):
    """Breaks when a lock file is no baseline, a build tag is asked of an index, or what isn't pinned isn't told."""
    does, installed = lab[1], given_stacks.versions_in(requests.base())
    monkeypatch.chdir(tmp_path)
    does["1.12.0"], does["1.14.0"] = [TRAINS], [TRAINS]
    (tmp_path / "uv.lock").write_text(LOCK)
    (tmp_path / "new.txt").write_text("trl==1.14.0\npeft>=9.0  # any\naccelerate>=0.1\n-r missing.txt\n")
    code, out, errors = asked("is-safe", "--base", "uv.lock", "--to", "trl==1.16.0", *NARROW)
    assert code == 0 and out.startswith("SAFE: trl 1.12.0 → 1.16.0 (against uv.lock)\n")
    assert errors[0].startswith("uv.lock doesn't name these, which are taken as installed here: transformers ")
    code, out, errors = asked("is-safe", "--base", "uv.lock", "--to", "new.txt", *NARROW)
    assert code == 0 and out.startswith("SAFE: trl 1.12.0 → 1.14.0 (against uv.lock)\n")
    notes = [
        "new.txt:4: skipped, missing.txt does not exist",
        "new.txt pins no peft (>=9.0): taken is the newest release that fits",
        f"new.txt pins no accelerate (>=0.1): taken is {installed['accelerate']} as in the baseline",
    ]
    assert errors[1:4] == notes
    stack, _ = given_stacks.baseline("uv.lock", "")
    assert {"trl==1.12.0", "torch==2.13.0"} <= set(stack.requirements) and stack.name == "uv.lock"
    monkeypatch.setattr(requests, "installed", tuple)
    _, (*_, note) = given_stacks.baseline("uv.lock", "")
    assert note.startswith("uv.lock doesn't name these, which are taken as in Faultline's own pins: ")
    _, notes = given_stacks.baseline("trl==1.15.0", "")
    assert notes == ("what trl==1.15.0 leaves open is taken as in Faultline's own pins",)


def test_another_environment_is_a_baseline_by_its_interpreter(lab, asked, tmp_path):
    """Breaks when what is installed elsewhere has to be written down before it can be compared with."""
    lab[1]["1.12.0"] = [TRAINS]
    python = tmp_path / "venv" / "bin" / "python"
    (tmp_path / "venv/lib/python3.12/site-packages/trl-1.12.0.dist-info").mkdir(parents=True)
    python.parent.mkdir()
    python.touch()
    code, out, _ = asked("is-safe", "--python", str(python), "--to", "trl==1.16.0", *NARROW)
    assert code == 0 and out.startswith("SAFE: trl 1.12.0 → 1.16.0 (against the environment of ")
    assert asked("is-safe", "trl==1.16.0", "--python", str(python), "--base", "trl==1.1", *NARROW)[0] == EXIT_USAGE


@pytest.mark.parametrize(
    "argv",
    [
        *([text] for text in ("", "trl=1.0", "tlr==1.12.0", "missing.txt", "tests", "stacks/bumps.toml")),
        ["pyproject.toml", "--base", "docs/releases.md"],
        ["trl==1.12.0", "--base", "trl=1"],
        ["trl==1.12.0", "--resume"],
    ],
)
def test_mistakes_are_one_line(lab, asked, argv):
    """Breaks when a typo is a traceback, or is told after a run has begun."""
    code, out, errors = asked("is-safe", *argv)
    assert code == EXIT_USAGE and len(errors) == 1 and not out
    assert not list(lab[0].glob("is-safe-*"))


def test_a_bump_of_everything_has_a_folder():
    """Breaks when the name of a grouped bump is longer than a file's may be, or two of them share a folder."""
    bump = " ".join(f"{name}==10.20.30" for name in (*packages.NEEDED, *packages.NEEDED))
    names = {campaigns.file_name(f"{bump} on {base} again 1") for base in ("today", "trl-0.15.2")}
    assert len(names) == 2 and all(len(name) <= 100 for name in names)
    assert campaigns.file_name("trl==1.16.0 on today") == "trl==1.16.0-on-today"


def test_two_do_not_go_on_with_the_same_campaign(lab):
    """Breaks when two RESUME=1 at once write into the same files."""
    first = campaigns.begin("is-safe", {"of": 1}, 1)
    with pytest.raises(UsageError, match="in another process"):
        campaigns.begin("is-safe", {"of": 1}, 1, resume=True)
    other = campaigns.begin("is-safe", {"of": 2}, 1)
    first.lock.release()
    again = campaigns.begin("is-safe", {"of": 1}, 1, resume=True)
    assert again.folder == first.folder != other.folder, "an older question can't go on once another was asked"


def test_a_stack_that_could_not_start_is_tried_again(lab, asked):
    """Breaks when an UNKNOWN of a busy machine stays for good, or a resumed run answers another question."""
    lab[1]["1.12.0"] = NeverReady
    assert asked("is-safe", "trl==1.12.0", *NARROW)[0] == EXIT_UNDECIDED
    lab[1]["1.12.0"] = [TRAINS]
    code, out, _ = asked("is-safe", "trl==1.12.0", *NARROW, "--resume")
    assert code == 0 and out.startswith("SAFE"), "what was measured of the baseline, or the second try, is lost"
    assert [name for name, _ in lab[2]].count("1.16.0") == 1, "a resumed run measures anew"
    assert asked("is-safe", "trl==1.11.0", *NARROW, "--resume")[0] == EXIT_USAGE


def test_cells_by_default_are_trainers_and_mechanisms():
    """Breaks when is-safe measures remedies of mechanisms, or leaves a trainer out."""
    cells = selection.select(failures(), Selection())
    chosen = sampling.usual_cells(cells)
    known = {cell: failures()[cell.failure].variant(cell.variant) for cell in cells}
    assert set(chosen) == {cell for cell, v in known.items() if v.trainer or v.name == "broken"}
    assert {v.trainer for v in map(known.get, chosen)} >= {"", "grpo", "sft"}


def test_on_another_baseline_the_rest_stays():
    """Breaks when a candidate is resolved next to today's versions, or newer ones, instead of the baseline's."""
    base = requests.parse("2026-06-01")
    stack = is_safe.on(base, "trl==1.5.0\ntorch==2.13.0+cpu\nnumpy==2.0", "trl==1.6.0")
    assert stack.requirements[0] == "trl==1.6.0" and stack.asof == "2026-06-01"
    assert stack.base == ("torch==2.13.0+cpu", "numpy==2.0")
    assert {Requirement(text).name for text in stack.requirements} == {*packages.NEEDED, *requests.UNDECLARED}
    assert is_safe.on(base, "trl==1.5.0", "2026-07-01") == requests.parse("2026-07-01")
    measured = campaigns.Measured("x", BASE + "numpy==2.0\n")
    assert is_safe.repeatable(base, "trl==1.16.0", measured) == "torch==2.13.0 transformers==5.23.0 trl==1.16.0"
    assert is_safe.repeatable(requests.parse("today"), "trl==1.6.0", measured) == "trl==1.6.0"


def test_the_replayed_bumps_are_enough_to_tell():
    """Breaks when the table has too few bumps of either kind, or one that asks about no cell or nothing known."""
    known = recorded.past_upgrades()
    verdicts = [bump.verdict for bump in known.values()]
    assert len(known) >= 8 and verdicts.count(Safety.SAFE) >= 3 and verdicts.count(Safety.NOT_SAFE) >= 4
    for bump in known.values():
        assert upgrades.cells_of(bump) and bump.why
        is_safe.on(requests.parse(bump.base), "", bump.requirements)
        assert all("==" in word for word in bump.requirements.split()), "another release every day"
    text = upgrades.README.read_text(encoding="utf-8")
    assert all(f"`{bump.requirements}`" in text for bump in known.values()), "run `faultline maintain replay`"


def test_a_wrong_answer_fails_the_replay(lab, asked, tmp_path, monkeypatch):
    """Breaks when the replay passes although is-safe called a bad bump safe, or doesn't say which."""
    entry = '[[bump]]\nname = "{}"\nbase = "today"\nrequirements = "trl==1.12.0"\nverdict = "{}"\nwhy = "a"\n'
    cells = 'cells = ["grpo_lora_no_grad/*broken/zero2"]\n'
    (tmp_path / "bumps.toml").write_text(entry.format("good", "SAFE") + cells + entry.format("bad", "NOT SAFE") + cells)
    (tmp_path / "README.md").write_text("<!-- measured: begin -->\n<!-- measured: end -->\n")
    monkeypatch.setattr(recorded, "STACKS", tmp_path)
    monkeypatch.setattr(upgrades, "README", tmp_path / "README.md")
    code, out, _ = asked("maintain", "replay")
    assert code == EXIT_UNEXPECTED and "1 of 2 bumps answered as known, not as known: bad" in out
    assert "**SAFE**" in (tmp_path / "README.md").read_text()
    assert asked("maintain", "replay", "good")[0] == 0
    assert asked("maintain", "replay", "goood")[0] == EXIT_USAGE


def test_a_package_is_meant_in_its_own_clone(tmp_path, monkeypatch):
    """Breaks when `is-safe trl` in a clone of TRL takes the folder `trl` for a side that lacks its file."""
    (tmp_path / "trl").mkdir()
    (tmp_path / "mine").mkdir()
    monkeypatch.chdir(tmp_path)
    assert given_stacks.read("trl", {}, "").text == "trl"
    with pytest.raises(UsageError, match="is a folder"):
        given_stacks.read("mine", {}, "")
