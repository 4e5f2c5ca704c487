"""The README and the pages of docs/: short, linked, and right about what the code has and prints."""

import itertools
import re
import shlex
import tomllib
from dataclasses import fields
from xml.etree import ElementTree as ET

import pytest
from rich.console import Console

from faultline import strategies
from faultline.base import paths
from faultline.base.axes import CHECKPOINTING, DEVICES, PRECISIONS
from faultline.base.packages import versions
from faultline.base.text import percent
from faultline.catalogue import loading
from faultline.catalogue.outcomes import Outcome
from faultline.cells import expected as cells_expected
from faultline.cells.cell import WORLD_SIZES, Cell
from faultline.cells.expected import Expectation
from faultline.cells.finding import described
from faultline.cells.selection import Selection, select
from faultline.cli import app
from faultline.maintain import readmes
from faultline.observations import store, symptoms
from faultline.runs.results import RankError
from tests.maintain.test_automation import unknown
from tests.support import entries
from tests.support.program import python
from website import screenshots

ROOT = paths.ROOT
FILES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PAGES = {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in FILES}
README = PAGES["README.md"]
# All pages that a reader meets.
FOLDERS = ("repros", "stacks", "observations", "fixtures", "bench")
MARKDOWN = [*FILES, *(file for name in FOLDERS for file in ROOT.glob(f"{name}/**/*.md"))]


def section(page, title):
    return PAGES[page].split(f"\n## {title}\n")[1].split("\n## ")[0]


def rows(text):
    """The rows of the first table in a text, without its head, as lists of columns."""
    lines = text[text.index("\n|") :].strip().split("\n\n")[0].splitlines()[2:]
    return [[column.strip() for column in line.strip("|").split(" | ")] for line in lines]


def code(text):
    return re.findall(r"`([^`]+)`", text)


def blocks(text):
    return re.findall(r"^```\w*\n(.*?)^```$", text, re.S | re.M)


def without_blocks(text):
    return re.sub(r"^```\w*\n.*?^```$", "", text, flags=re.S | re.M)


def commands(text):
    """Each `faultline` command line in a page's code, as words after the program's name."""
    lines = text.replace("\\\n", " ").splitlines()
    for line in [*map(str.strip, lines), *code(without_blocks(text))]:
        if line.removeprefix("$ ").startswith("faultline "):
            yield tuple(shlex.split(line.removeprefix("$ "), comments=True)[1:])


def verb(words):
    return words[: 2 if words[0] in ("fleet", "maintain", "prove") else 1]


EVERY = {words for file in MARKDOWN for words in commands(file.read_text(encoding="utf-8"))}
COMMANDS = EVERY - {("maintain",), ("prove",), ("fleet",)}


def test_the_readme_takes_two_minutes_and_every_page_is_in_the_index():
    """Breaks when the README grows into a manual, or nobody can find the page in docs/ that has the rest."""
    assert len(README.splitlines()) <= 150
    assert max(map(len, README.splitlines())) <= 200, "a table of the README is too wide"
    linked = set(re.findall(r"\]\((\w[\w.-]*\.md)\)", PAGES["docs/README.md"]))
    assert linked == {file.name for file in FILES if file.parent.name == "docs"} - {"README.md"}
    assert "docs/README.md" in README and "CONTRIBUTING.md" in README


def anchors(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_blocks(text), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_lead_to_files_and_headings():
    """Breaks when a page or a heading is renamed and a link to it isn't."""
    broken = []
    for file in MARKDOWN:
        text = re.sub(r"`[^`\n]*`", "", without_blocks(file.read_text(encoding="utf-8")))
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
            path, _, anchor = target.partition("#")
            there = (file.parent / path).resolve() if path else file
            if not there.exists() or (anchor and anchor not in anchors(there.read_text(encoding="utf-8"))):
                broken.append(f"{file.relative_to(ROOT)}: {target}")
    assert not broken


def test_the_glossary_has_every_term():
    """Breaks when a term of the pages has no definition, or a definition no example."""
    terms = "cell failure variant remedy claim strategy stack reference outcome signature observation mechanism".split()
    headings = re.findall(r"^## (.+)$", PAGES["docs/glossary.md"], re.M)
    assert {*terms, "verdict", "certain", "likely"} <= {*headings}
    assert [code(row[0])[0] for row in rows(section("docs/glossary.md", "verdict"))] == [*readmes.VERDICTS]
    for term in headings:
        text = section("docs/glossary.md", term)
        assert re.search("example", text, re.I) or '"' in text or "Its id" in text, f"{term} has no example"


def test_the_tables_of_the_pages_are_what_the_code_has():
    """Breaks when a page has an outcome, verdict, key, axis or strategy that there isn't, or lacks one."""
    for page, title in (("docs/outcomes.md", "Outcomes"), ("docs/glossary.md", "outcome")):
        names = [code(row[0])[0] for row in rows(section(page, title))]
        assert names == [*Outcome], page
    assert [line.split()[0] for line in Outcome.__doc__.splitlines()[2:] if line.strip()] == names
    table = [code(row[0])[0] for row in rows(section("docs/outcomes.md", "Expectations"))]
    fails = Expectation(Outcome.RAISES, ("torn",))
    done = [(fails, "raises", "torn"), (Expectation(), "hangs", ""), (fails, "trains", ""), (fails, "raises", "other")]
    assert table == [cells_expected.verdict(*each) for each in done]
    entry = entries.entry(Cell("f", "v", "s")).as_json()
    table = rows(section("docs/formats.md", "cells.jsonl"))
    assert [key for keys, _ in table for key in code(keys)] == [*entry], "whoever reads cells.jsonl is misled"
    values = {keys: code(text) for keys, text in table}
    error = {field.name for field in fields(RankError)}
    assert error < set(values["`ranks`"]) and set(values["`ranks`"]) - error == set(entry["ranks"][0])
    assert re.findall(r"\w+", values["`expected`"][0]) == [*entry["expected"]]
    table = dict(rows(section("docs/matrix.md", "Axes")))
    assert code(table["checkpointing"]) == [*CHECKPOINTING]
    assert code(table["precision"]) == [*PRECISIONS]
    assert tuple(map(int, re.findall(r"\d", table["world size"].replace("(default)", "")))) == WORLD_SIZES
    assert code(table["device"]) == [*DEVICES]
    families = rows(section("docs/matrix.md", "Strategies"))
    assert {name for _, names in families for name in code(names)} == {*strategies.names()}


def test_the_rule_that_is_shown_is_true(tmp_path):
    """Breaks when the rule on the page says of any cell what the failure's rules don't."""
    file = tmp_path / "expected.toml"
    file.write_text(blocks(section("docs/outcomes.md", "Expectations"))[0])
    [rule] = cells_expected.load(file)
    failure = loading.failures()["zero_double_reduction"]
    known, stack = cells_expected.rules(failure), versions()
    about = [
        cell for cell in select({failure.name: failure}, Selection()) if cells_expected.first_rule([rule], cell, stack)
    ]
    assert about, "the rule is about no cell, or about other versions than are pinned"
    for cell in about:
        expected = cells_expected.expect(known, cell, stack)
        assert (expected.outcome, expected.signatures) == (rule.outcome, rule.signature), f"{cell.id} differs"
    assert rule.record in failure.records


def test_commands_that_are_shown_exist_with_their_options(asked, monkeypatch):
    """Breaks when a page shows a command or an option that there isn't, or no page shows a command."""
    monkeypatch.setattr(app.app(), "console", Console(width=300))
    verbs = "diagnose check audit export is-safe bisect reproduce timeline run explore list show report maintain"
    assert {*verbs.split(), "prove", "completion", "fleet"} == {words[0] for words in COMMANDS}
    wrong, known = [], {}
    for name in {verb(words) for words in COMMANDS}:
        code, help_text, _ = asked(*name, "--help")
        known[name] = {*re.findall(r"--[a-z][\w-]*", help_text), "--help"}
        wrong += [" ".join(name)] if code else []
    for words in COMMANDS:
        options = {word.partition("=")[0] for word in words if word.startswith("--")}
        wrong += [f"{' '.join(words)}: {option}" for option in options - known[verb(words)]]
    assert not wrong, "there are no such commands or options"


def test_targets_and_variables_that_are_shown_exist():
    """Breaks when a page shows `make` something that the Makefile doesn't have."""
    shown = [line for text in PAGES.values() for block in blocks(text) for line in block.splitlines()]
    shown += [each for text in PAGES.values() for each in code(without_blocks(text))]
    lines = [line for line in shown if line.startswith("make ")]
    assert len(lines) > 10 and not [*itertools.chain.from_iterable(map(unknown, lines))]


def test_cells_that_are_shown_exist():
    text = "".join(PAGES.values())
    shown = re.findall(r"(?:CELL=|export )(\w+/\S+)", text)
    inside = re.findall(r"repros/(\w+)/failure.py::([^\"]+)", text)
    ids = dict.fromkeys([*shown, *(f"{failure}/{name}" for failure, name in inside)])
    assert len(ids) > 2 and [cell.id for cell in select(loading.failures(), Selection(cells=tuple(ids)))] == [*ids]


def phrases(finding):
    """What a finding says in a few words."""
    factor = [re.sub(r" \(.*", "", described(finding.factor))] if finding.factor else []
    first = finding.first
    difference = [f"the head's gradient differs by {percent(first.error)}"] if first.module == "lm_head" else []
    return [*factor, f"{finding.unmoved_count} weights never move", *difference]


def test_what_trains_wrongly_without_an_error_does_so():
    """Breaks when the README's examples name a failure that raises by now, or that is fixed."""
    table = rows(section("README.md", "What it found"))
    assert len(table) == 6
    for title, wrong, places in table:
        name = re.search(r"\(repros/(\w+)/README.md\)", title)[1]
        measured = [row.finding for cell, row in store.divergences().items() if cell.partition("/")[0] == name]
        assert any(wrong in phrases(finding) for finding in measured), f"{name} was not measured so"
        [ending] = symptoms.endings(loading.failures()[name])
        assert re.sub(r"all \d+ strategies", "all strategies", ending) == f"silent: {places}"


def test_the_upgrade_that_is_shown_is_a_known_one():
    """Breaks when the README shows an upgrade that changes nothing, or whose answer is another."""
    [words] = [words for words in commands(README) if words[0] == "is-safe"]
    options = dict(zip(words[2::2], words[3::2], strict=True))
    bumps = tomllib.loads((ROOT / "stacks" / "bumps.toml").read_text(encoding="utf-8"))
    [bump] = [b for b in bumps["bump"] if (b["base"], b["requirements"]) == (options["--base"], words[1])]
    assert f"This upgrade is {bump['verdict']}." in README
    places = bump.get("cells", bumps["cells"])
    assert {place.partition("/")[0] for place in places} == {options["--failure"]}


def shows(lines, printed):
    """Whether lines are what is printed; dots stand for what is left out."""
    parts = [re.escape(part.rstrip()) for part in "\n".join(line.strip() for line in lines).split("...")]
    stripped = "\n".join(line.strip() for line in printed.splitlines()).strip()
    return re.search(r"\A" + r"[^\0]*?".join(parts) + r"\s*\Z", stripped)


def example(page, command):
    """The command line of a page's example, and the lines that it prints."""
    return examples(page, command)[0]


def examples(page, command):
    shown = [block.strip().splitlines() for block in blocks(PAGES[page]) if block.startswith(f"$ faultline {command}")]
    return [(shlex.split(first)[2:], lines) for first, *lines in shown]


def test_the_diagnosis_that_is_shown_is_what_is_printed(monkeypatch, asked, tmp_path):
    """Breaks when a reader is shown an answer that the command doesn't give; dots stand for what is left out."""
    (tmp_path / "faultline").symlink_to(ROOT / "bin" / "faultline")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("COLUMNS", "300")
    for page in ("README.md", "docs/diagnose.md"):
        for words, lines in examples(page, "diagnose"):
            code, printed, _ = asked(*words)
            assert code == (lines[0].startswith("No error")) and shows(lines, printed), f"{page}: {printed}"


def masked(text):
    """A text without how far what is off, and on which rank: which gradients meet is another in another run."""
    return re.sub(r"(\([\w.]+\), )?by [\d.e+-]*\d %|step \d|rank \d", "@", text)


@pytest.mark.slow
def test_the_check_that_is_shown_is_what_is_printed():
    """Breaks when the page shows for a model what the command doesn't print."""
    words, lines = example("docs/check.md", "check")
    done = python("-m", "faultline", *words, COLUMNS="100")
    assert done.returncode == 1, done.stderr
    assert shows(masked("\n".join(lines)).splitlines(), masked(done.stdout)), done.stdout
    shown, first = example("README.md", "check")
    assert shown == words and {*first} <= {*lines}, "the README's first example is of another check"


def test_pictures_are_there_small_and_ask_nobody():
    """Breaks when a page shows a picture that isn't there, or one that loads a font from a stranger."""
    pattern = r'(?:(?:src|srcset)="|!\[[^]]*\]\()(?:\.\./)?(screenshots/[^")]+)'
    shown = {name for text in PAGES.values() for name in re.findall(pattern, text)}
    assert shown == {f"screenshots/{file.name}" for file in screenshots.FOLDER.iterdir()}
    for name in shown:
        content = (ROOT / name).read_bytes()
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

    for command in screenshots.COMMANDS.values():
        _, bound, _ = app.app().parse_args(shlex.split(command)[1:], exit_on_error=False, print_error=False)
        assert select(loading.failures(), bound.arguments["axes"].selection()), f"no cell is all of that: {command}"
