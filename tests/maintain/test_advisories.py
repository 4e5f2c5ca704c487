"""Advisories: what is committed is what the records say now, valid in the OSV schema."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from packaging.version import Version

from faultline.base import packages
from faultline.catalogue import loading
from faultline.maintain import advisories
from faultline.observations import measured, store
from faultline.stacks import requests

FAILURES = loading.failures()
SCHEMA = advisories.FOLDER / "schema" / "osv.json"


def committed(name):
    return json.loads((advisories.FOLDER / f"{advisories.PREFIX}{name}.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", FAILURES)
def test_the_committed_advisory_is_what_the_records_say(name):
    """Breaks when a record, a rule or a run changed and the advisory didn't: faultline maintain advisories"""
    assert advisories.undated(committed(name)) == advisories.advisory(FAILURES[name])


def test_there_is_one_for_each_failure_and_no_other():
    assert {file.stem.removeprefix(advisories.PREFIX) for file in advisories.FOLDER.glob("*.json")} == {*FAILURES}


def test_they_are_valid_and_the_check_can_fail(tmp_path):
    """Breaks when other tools can't read an advisory, or the schema lets anything pass."""

    def check(*files):
        return subprocess.run(
            [sys.executable, "-m", "check_jsonschema", "--schemafile", str(SCHEMA), *map(str, files)],
            capture_output=True,
            text=True,
        )

    done = check(*sorted(advisories.FOLDER.glob("*.json")))
    assert done.returncode == 0, done.stdout
    for key, value in (("id", "FAULTLINE-1"), ("modified", "today"), ("unknown", 1), ("affected", [{"ranges": [{}]}])):
        file = tmp_path / f"{key}.json"
        file.write_text(json.dumps({**committed("grpo_lora_no_grad"), key: value}))
        assert check(file).returncode == 1, f"an advisory with another {key} passes"


@pytest.mark.parametrize("name", FAILURES)
def test_versions_were_run_and_ranges_are_in_order(name):
    """Breaks when an advisory claims a release that no run had, or a range that is upside down."""
    told = advisories.advisory(FAILURES[name])
    runs = [stack.versions for stack in store.stacks().values()]
    assert told["affected"], "no package is affected"
    assert not {"severity"} & told.keys()
    for entry in told["affected"]:
        package = entry["package"]["name"]
        ran = {run.get(package) for run in (*runs, measured.pinned())}
        reported = FAILURES[name].reported
        ran |= {packages.pinned(requests.named()[reported.stack]).get(package)} if reported else set()
        ran |= {turn.version for turn in FAILURES[name].history.began if turn.package == package}
        for version in entry["versions"]:
            assert version in ran, f"{package} {version}"
        for range_ in entry.get("ranges", ()):
            events = {kind: Version(version) for event in range_["events"] for kind, version in event.items()}
            last = events.get("fixed") or events["last_affected"]
            assert range_["type"] == "ECOSYSTEM" and events["introduced"] < last
            inside = [Version(v) for v in entry["versions"]]
            assert min(inside) == events["introduced"] and max(inside) <= last
        if len(entry["versions"]) == 1 and "fixed" not in str(entry):
            assert "ranges" not in entry and "only" in entry["database_specific"]["measured"]


def test_a_second_time_changes_nothing_and_what_is_gone_is_removed(tmp_path, monkeypatch, asked):
    """Breaks when dates move although nothing else did, or an advisory outlives its failure."""
    monkeypatch.setattr(advisories, "FOLDER", tmp_path)
    monkeypatch.setattr(advisories, "ROOT", tmp_path)
    (tmp_path / "x_FAULTLINE-gone.json").write_text("{}")
    code, out, _ = asked("maintain", "advisories")
    assert code == 0 and out.count(": written") == len(FAILURES) and "x_FAULTLINE-gone.json: removed" in out
    first = {file.name: file.read_text() for file in tmp_path.iterdir()}
    assert first.keys() == {f"{advisories.PREFIX}{name}.json" for name in FAILURES}
    changed = next(iter(first))
    before = json.loads(first[changed])
    (tmp_path / changed).write_text(json.dumps({**before, "summary": "old", "published": "2020-01-01T00:00:00Z"}))
    _, out, _ = asked("maintain", "advisories")
    assert out.count(": unchanged") == len(FAILURES) - 1
    after = json.loads((tmp_path / changed).read_text())
    assert after["published"] == "2020-01-01T00:00:00Z" and after["summary"] == before["summary"]
    assert all((tmp_path / name).read_text() == text for name, text in first.items() if name != changed)
