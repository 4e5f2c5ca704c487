"""Advisories: one for each failure, valid in the OSV schema, with versions that were run."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.version import Version

from faultline.base import packages
from faultline.catalogue import loading
from faultline.maintain import advisories
from faultline.observations import measured, store
from faultline.stacks import requests

FAILURES = loading.failures()
SCHEMA = Path(__file__).parent / "osv" / "schema.json"


@pytest.mark.slow
def test_there_is_a_valid_one_for_each_failure_and_the_check_can_fail(tmp_path, monkeypatch, asked):
    """Breaks when other tools can't read an advisory, the schema lets anything pass, or one outlives its failure."""

    def check(*files):
        words = ["-m", "check_jsonschema", "--schemafile", str(SCHEMA), *map(str, files)]
        return subprocess.run([sys.executable, *words], capture_output=True, text=True)

    folder = tmp_path / "advisories"
    monkeypatch.setattr(advisories, "FOLDER", folder)
    folder.mkdir()
    (folder / "x_FAULTLINE-gone.json").write_text("{}")
    code, out, _ = asked("maintain", "advisories")
    assert code == 0 and out == f"{folder}: {len(FAILURES)} advisories\n"
    written = {file.stem.removeprefix(advisories.PREFIX): file for file in folder.iterdir()}
    assert written.keys() == FAILURES.keys()
    done = check(*written.values())
    assert done.returncode == 0, done.stdout
    known = json.loads(written["grpo_lora_no_grad"].read_text())
    other = {"id": "FAULTLINE-1", "modified": "today", "unknown": 1, "affected": [{"ranges": [{}]}]}
    for key, value in other.items():
        (tmp_path / f"{key}.json").write_text(json.dumps({**known, key: value}))
    done = check(*(tmp_path / f"{key}.json" for key in other))
    assert done.returncode == 1
    assert not [key for key in other if f"/{key}.json::" not in done.stdout], "an advisory with another of these passes"


@pytest.mark.parametrize("name", FAILURES)
def test_versions_were_run_and_ranges_are_in_order(name):
    """Breaks when an advisory claims a release that no run had, or a range that is upside down."""
    answer = advisories.advisory(FAILURES[name])
    runs = [stack.versions for stack in store.stacks().values()]
    assert answer["affected"], "no package is affected"
    assert not {"severity"} & answer.keys()
    for entry in answer["affected"]:
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
