"""The command line's answers: help, lists, records and versions."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace

import pytest

from faultline import catalogue, matrix, results, server
from faultline.expectations import Expectation
from faultline.matrix import Selection
from faultline.oracle import Judgement, Outcome
from faultline.ranks import Ended
from faultline.results import RunFolder, result

VERBS = (
    "run",
    "list",
    "show",
    "diagnose",
    "check",
    "audit",
    "export",
    "export-all",
    "reports",
    "env",
    "bless",
    "readme",
    "record",
    "score",
    "report",
    "durations",
    "merge",
    "repeat",
    "chaos",
    "reproduce",
    "timeline",
    "is-safe",
    "replay",
    "chart",
    "bisect",
    "is-safe-change",
    "clean-stacks",
    "bench",
)
FAILURES = catalogue.failures()


@pytest.fixture(autouse=True)
def nothing_was_run(tmp_path, monkeypatch):
    """Results lie in a folder that isn't there yet."""
    root = tmp_path / "results"
    monkeypatch.setattr(results.runs, "__defaults__", (root,))
    return root


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(asked, verb):
    code, out, errors = asked(verb, "--help")
    assert code == 0 and not errors
    assert out.startswith(f"usage: python -m faultline {verb}")
    assert out.splitlines()[2].strip() or out.splitlines()[3].strip(), "the verb says nothing of what it does"


def test_the_verbs_are_all_told(asked):
    _, out, _ = asked("--help")
    assert [line.split()[0] for line in out.splitlines() if line.startswith("    ") and line[4] != " "] == [*VERBS]


def test_list_tells_cells_and_what_is_left_out(asked):
    code, out, errors = asked("list")
    assert code == 0 and not errors
    cells = matrix.select(FAILURES, Selection())
    counts = Counter(rule for _, rule in matrix.left_out(FAILURES, Selection()))
    for word in (*FAILURES, str(len(cells)), *map(str, counts.values())):
        assert word in out, f"{word} is missing from the list"


def test_list_tells_the_rule_of_each_combination_that_is_left_out(asked):
    """Breaks when somebody who misses a cell can't find out why it isn't run."""
    code, out, errors = asked("list", "--left-out", "--failure", "zero3_dummy_loss")
    assert code == 0 and not errors
    reasons = matrix.left_out(FAILURES, Selection(("zero3_dummy_loss",)))
    assert out.splitlines() == [f"{cell.id}  {rule}" for cell, rule in reasons]
    alone = "zero3_dummy_loss/broken/single/off/fp32/w2/cpu"
    assert f"{alone}  the single strategy is one process, so its world size is 1" in out.splitlines()


def test_list_ids_are_what_run_would_take(asked):
    code, out, _ = asked("list", "--ids", "--failure", "grpo*", "--strategy", "ddp, zero2*", "--checkpointing", "off")
    chosen = Selection(("grpo*",), strategy=("ddp", "zero2*"), checkpointing=("off",))
    assert code == 0
    assert out.split() == [cell.id for cell in matrix.select(FAILURES, chosen)]


@pytest.mark.parametrize("failure", FAILURES)
def test_show_tells_the_record_the_variants_and_the_claims(asked, failure):
    code, out, errors = asked("show", failure)
    assert code == 0 and not errors
    known = FAILURES[failure]
    told = "".join(out.split())
    for word in (*known.records, *(v.name for v in known.variants), *(claim.source for claim in known.claims.values())):
        assert word in told, f"{word} is missing"
    told = " ".join(out.split())
    assert f"No run here has cells of this failure: `make test-matrix FAILURE={failure}` measures them" in told
    verdicts = re.findall(r"\b(verified|refuted|conditional|untested)\b", out.replace("allow_untested", ""))
    assert not verdicts, "without a run no claim has a verdict"


def measured(root, name, cells, outcome=Outcome.TRAINS, kind="run"):
    """The folder of a run in which every cell has the outcome."""
    folder = RunFolder(root / name)
    folder.path.mkdir(parents=True)
    folder.describe(kind=kind, cells=[cell.id for cell in cells], stack="torch 2.13.0", finished=True)
    entries = [result(cell, Judgement(outcome), Ended([]), "torch 2.13.0", Expectation(), "expected") for cell in cells]
    folder.cells.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return folder


def test_show_looks_for_the_newest_run_with_all_of_the_failures_cells(asked, nothing_was_run):
    """Breaks when a narrowed run, one of another failure or one with kills takes away verdicts measured before."""
    [own, other] = (matrix.select(FAILURES, Selection((name,))) for name in ("zero3_dummy_loss", "grpo_lora_no_grad"))
    narrow = measured(nothing_was_run, "2026-01-01T00-00-01", own[:3])
    code, out, _ = asked("show", "zero3_dummy_loss")
    assert code == 0 and f"{narrow.shown} of " in out and ": 3 cells of this failure" in out
    measured(nothing_was_run, "2026-01-01T00-00-02", own, Outcome.RAISES)
    newest = measured(nothing_was_run, "2026-01-01T00-00-03", [*own, *other])
    measured(nothing_was_run, "2026-01-01T00-00-04", own[:3])
    measured(nothing_was_run, "2026-01-01T00-00-05", other)
    measured(nothing_was_run, "chaos-2026-01-01T00-00-06", own, Outcome.CRASHES, "chaos")
    (nothing_was_run / "2026-01-01T00-00-07").mkdir()
    (nothing_was_run / "2026-01-01T00-00-07" / "run.json").write_text("{")
    code, out, _ = asked("show", "zero3_dummy_loss")
    told = " ".join(out.split())
    assert code == 0 and re.search(
        rf"Verdicts from {newest.shown} of \d{{4}}-\d\d-\d\d \d\d:\d\d: {len(own)} cells", told
    )
    cuda = [replace(cell, device="cuda") for cell in own]
    newest = measured(nothing_was_run, "2026-01-01T00-00-08", cuda)
    assert newest.shown in asked("show", "zero3_dummy_loss")[1], "a run on a GPU is one as well"


def test_env_is_json_for_machines_and_text_for_people(asked):
    code, out, _ = asked("env", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["stack"] == server.versions() and facts["settings"] == server.environment()
    code, out, _ = asked("env")
    assert code == 0 and all(name in out for name in facts["stack"])
