"""The README: its tables name exactly what the code has."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from xml.etree import ElementTree as ET

import pytest

from faultline import catalogue, expectations, runner, screenshots, server, strategies
from faultline.cli import parser
from faultline.commands import selection
from faultline.expectations import Expectation
from faultline.matrix import CHECKPOINTING, DEVICES, PRECISIONS, WORLD_SIZES, Cell, Selection, select
from faultline.oracle import Judgement, Outcome
from faultline.ranks import Ended, RankEnd
from faultline.results import result

TEXT = (catalogue.ROOT / "README.md").read_text(encoding="utf-8")


def section(title):
    return TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text):
    """The rows of the first table in a text, without its head, as lists of columns."""
    lines = [line for line in text.splitlines() if line.startswith("|")][2:]
    return [[column.strip() for column in line.strip("|").split("|")] for line in lines]


def code(text):
    return re.findall(r"`([^`]+)`", text)


def test_the_table_of_outcomes_is_the_oracles():
    found = [code(outcome)[0] for outcome, _ in rows(section("Outcomes"))]
    assert found == [outcome.value for outcome in Outcome], (
        "an outcome is told that there isn't, or the other way round"
    )


def test_the_outcomes_docstring_names_them_all():
    assert [line.split()[0] for line in Outcome.__doc__.splitlines()[2:] if line.strip()] == list(Outcome)


def test_the_table_of_keys_is_a_results():
    entry = result(Cell("f", "v", "s"), Judgement(Outcome.TRAINS), Ended([RankEnd({})]), "", Expectation(), "expected")
    table = rows(section("cells.jsonl"))
    assert [key for keys, _ in table for key in code(keys)] == [*entry], "whoever reads cells.jsonl is misled"
    told = {keys: code(text) for keys, text in table}
    assert {"type", "message", "traceback"} < set(told["`ranks`"])
    assert set(told["`ranks`"]) - {"type", "message", "traceback", "own"} == set(entry["ranks"][0])
    assert re.findall(r"\w+", told["`expected`"][0]) == [*entry["expected"]]


def test_the_table_of_axes_is_the_matrixs():
    table = dict(rows(section("Using it")))
    assert code(table["checkpointing"]) == [*CHECKPOINTING]
    assert code(table["precision"]) == [*PRECISIONS]
    assert tuple(map(int, re.findall(r"\d", table["world size"].replace("(default)", "")))) == WORLD_SIZES
    assert code(table["device"]) == [*DEVICES]
    named = table["strategy"].replace("`zero0` to `zero3`", "`zero0`, `zero1`, `zero2`, `zero3`")
    named = named.replace("`-small`", ", ".join(f"`zero{stage}-small`" for stage in range(4)))
    assert set(code(named)) == set(strategies.names())


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)#:]+)\)", TEXT):
        assert (catalogue.ROOT / target).is_file(), f"{target} doesn't exist"


def test_the_rule_that_is_shown_is_true(tmp_path):
    """Breaks when the README's rule says of any cell what the failure's own rules don't."""
    file = tmp_path / "expected.toml"
    file.write_text(section("Expectations").split("one trains.")[1])
    [rule] = expectations.load(file)
    failure = catalogue.failures()["zero_double_reduction"]
    known, stack = runner.rules(failure), server.versions()
    about = [cell for cell in select({failure.name: failure}, Selection()) if expectations.first([rule], cell, stack)]
    assert about, "the rule is about no cell, or about other versions than are pinned"
    for cell in about:
        told = expectations.expect(known, cell, stack)
        assert (told.outcome, told.signatures) == (rule.outcome, rule.signatures), f"{cell.id} does something else"
    assert rule.record in failure.records
    names = {field.name.replace("signatures", "signature") for field in fields(rule)}
    assert set(expectations.KEYS) == names - {"place", "text"}


@pytest.mark.parametrize("verb", sorted(set(re.findall(r"(?:python -m |bin/)faultline ([\w-]+)", TEXT))))
def test_commands_that_are_shown_exist(verb, capsys):
    with pytest.raises(SystemExit) as left:
        parser().parse_args([verb, "--help"])
    assert left.value.code == 0, f"there is no {verb}"
    assert verb in capsys.readouterr().out


def test_cells_that_are_shown_exist():
    shown = re.findall(r"CELL=(\S+)", TEXT)
    inside = re.findall(r"repros/(\w+)/failure.py::([^\"]+)", TEXT)
    ids = [*shown, *(f"{failure}/{name}" for failure, name in inside)]
    assert ids and [cell.id for cell in select(catalogue.failures(), Selection(cells=tuple(ids)))] == ids


def test_the_diagnosis_that_is_shown_is_what_is_printed(monkeypatch, asked):
    """Breaks when a reader is shown an answer that the command doesn't give; dots stand for what is left out."""
    monkeypatch.chdir(catalogue.ROOT)
    monkeypatch.setenv("COLUMNS", "300")
    command, *lines = [line.strip() for line in section("What hit me").split("\n\nIt takes")[0].strip().splitlines()]
    code, printed, _ = asked(*command.removeprefix("$ python -m faultline ").split())
    assert code == 0
    assert shows(lines, printed), "the README shows what diagnose doesn't print"


def shows(lines, printed):
    """Whether lines are what is printed; dots stand for what is left out."""
    parts = [re.escape(part.rstrip()) for part in "\n".join(line.strip() for line in lines).split("...")]
    told = "\n".join(line.strip() for line in printed.splitlines()).strip()
    return re.search(r"\A" + r"[^\0]*?".join(parts) + r"\s*\Z", told)


def masked(text):
    """A text without how far something is off, and on which rank: rounding may be another on another processor."""
    return re.sub(r"off by [\d.e+-]*\d|(gradients|weights)(, | off in )step \d|on rank \d|, rank \d", "@", text)


@pytest.mark.slow
def test_the_check_that_is_shown_is_what_is_printed():
    """Breaks when the README tells of somebody's own model what the command doesn't print of it."""
    command, *lines = section("Your own model").split("\n    $ ")[1].split("\n\nHere ")[0].splitlines()
    words = [sys.executable, *shlex.split(command)[1:]]
    environment = {**os.environ, "COLUMNS": "100"}
    done = subprocess.run(words, cwd=catalogue.ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert shows(masked("\n".join(lines)).splitlines(), masked(done.stdout)), done.stdout


def test_pictures_are_there_small_and_ask_nobody():
    """Breaks when the README shows a picture that isn't there, or one that loads a font from a stranger."""
    shown = {*re.findall(r'(?:src|srcset)="([^"]+)"', TEXT), *re.findall(r"!\[[^]]*\]\((screenshots/[^)]+)\)", TEXT)}
    assert shown == {f"screenshots/{file.name}" for file in screenshots.FOLDER.iterdir()}
    for name in shown:
        content = (catalogue.ROOT / name).read_bytes()
        assert len(content) < 200_000, f"{name} is too large"
        if name.endswith(".svg"):
            assert not re.search(rb"url\(.?http|@import|<script|<image|<foreignObject", content), name


def test_the_terminals_pictures_show_what_is_printed():
    """Breaks when a picture loses a text, takes one for markup, or asks for a font from the network."""
    drawn = screenshots.terminal("python -m x '<b>'", "\x1b[31mraises\x1b[0m [red] <script>alert(1)</script> ✗\n")
    root = ET.fromstring(drawn)
    text = "".join("".join(each.itertext()) for each in root.iter("{http://www.w3.org/2000/svg}text"))
    assert "$ python -m x '<b>'" in text.replace("\xa0", " ")
    assert "raises [red] <script>alert(1)</script> ✗" in text.replace("\xa0", " ")
    assert "url(http" not in drawn and "font-face" not in drawn


@pytest.mark.parametrize("command", screenshots.COMMANDS.values())
def test_what_is_pictured_can_be_asked(command):
    args = parser().parse_args(shlex.split(command)[3:])
    assert select(catalogue.failures(), selection(args)), "no cell is all of that"
