"""The command line's answers: help, lists, records and versions."""

from __future__ import annotations

import json
import re

import pytest

from faultline import catalogue, matrix, results, server
from faultline.matrix import Selection

VERBS = ("run", "list", "show", "env", "bless", "readme", "report", "durations", "merge", "repeat", "chaos", "bench")
FAILURES = catalogue.failures()


@pytest.fixture(autouse=True)
def nothing_was_run(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "RESULTS", tmp_path / "results")


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
    for word in (*FAILURES, str(len(cells)), *map(str, matrix.left_out(FAILURES).values())):
        assert word in out, f"{word} is missing from the list"


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
    assert len(re.findall(r"\buntested\b", out.replace("allow_untested", ""))) == len(known.claims), (
        "without a run no claim has a verdict"
    )


def test_env_is_json_for_machines_and_text_for_people(asked):
    code, out, _ = asked("env", "--json")
    facts = json.loads(out)
    assert code == 0
    assert facts["stack"] == server.versions() and facts["settings"] == server.environment()
    code, out, _ = asked("env")
    assert code == 0 and all(name in out for name in facts["stack"])
