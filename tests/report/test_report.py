"""Reports: what the terminal, the page and junit.xml show, and that nothing in a result is taken for more than text."""

import io
import json
import re
from collections import Counter
from dataclasses import asdict, replace
from xml.etree import ElementTree as ET
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from faultline import strategies
from faultline.base import text as base_text
from faultline.base.paths import ROOT
from faultline.base.text import plain
from faultline.catalogue.loading import failures
from faultline.cells import words
from faultline.cells.cell import Cell
from faultline.observations import remedies
from faultline.observations.remedies import Fate
from faultline.report import claims, junit, page, run
from faultline.report import failure as report_failure
from faultline.report import terminal as report_terminal
from faultline.runs import progress
from faultline.runs import results as runs_results
from faultline.runs.results import Deviation, RankError
from faultline.runs.storage import RunInfo
from tests.support import entries, on_gpus
from tests.support.entries import FAILURE, RANK, broken, evil, result


@pytest.fixture(autouse=True)
def _catalogue(monkeypatch):
    for module in (run, report_terminal, page):
        monkeypatch.setattr(module, "failures", lambda: {"example": FAILURE})


def shown(function, *args, width=100, terminal=False):
    """What a report prints; colours that the report chose itself are taken out."""
    settings = {"color_system": "truecolor", "highlight": False}
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, **settings)
    function(console, *args)
    return re.sub(r"\x1b\[[0-9;]*m", "", console.file.getvalue())


def embedded(html):
    """The page's data, found as a browser finds it: up to the first end of a script."""
    start = html.index('id="data">') + len('id="data">')
    return json.loads(html[start : html.lower().index("</script", start)], parse_constant=pytest.fail)


ORDINARY = st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126))


@given(ORDINARY | st.text() | st.text(alphabet="\x1b[]m0;\x07\x9b\r\n<>abc\u2028\x00\ud800"))
def test_law_a_plain_text_is_safe_for_a_terminal_and_for_xml(text):
    safe = plain(text)
    assert plain(safe) == safe, "making a text plain twice is not the same as once"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\ud800-\udfff\ufffe\uffff]", safe)
    assert safe == text or not (text.isascii() and text.isprintable()), "ordinary text was changed"
    assert (ET.fromstring(f"<a>{escape(safe)}</a>").text or "") == safe


@given(st.text(alphabet="ab `", max_size=60), st.integers(2, 40))
def test_law_a_text_is_cut_at_a_word_and_says_so(text, most):
    """Breaks when a reader can't see that there is more of an error, or reads half a word of it."""
    line, shown = plain(text).split(), base_text.cut(text, most)
    assert len(shown) <= most
    if shown == " ".join(line):
        return
    remaining = shown.removesuffix("…").split()
    assert shown.endswith("…") and " ".join(line).startswith(shown[:-1])
    assert remaining == line[: len(remaining)] or len(line[len(remaining) - 1]) >= most // 2


def test_no_text_reaches_a_terminal_or_a_shell_as_more_than_text():
    """Breaks when an escape sequence without end takes its text along, or an id becomes a command of its own."""
    assert plain("a\x1b]0;title\nb") == "a\nb"
    assert plain("\x1b[1;31mred\x1b[0m\r\nnext\rlast") == "red\nnext\nlast"
    assert words.command(broken().cell.id) == "faultline run --cell example/broken/ddp/off/fp32/w2/cpu"
    for cell in ("a/$(shell rm)/x", "a;b", "a b", "a'b", "a\nb", ""):
        assert words.command(cell) == ""


@given(st.sets(st.sampled_from(strategies.names()), min_size=1))
def test_law_patterns_match_exactly_the_strategies_that_are_meant(chosen):
    patterns = words.group_strategies(chosen, [*strategies.names(), "more"]).split(", ")
    assert {name for name in strategies.names() if base_text.matches(name, tuple(patterns))} == chosen


def test_every_result_has_one_place_and_main_rows_come_first():
    results = [
        broken(precision="bf16"),
        broken(world_size=4),
        broken(checkpointing="reentrant"),
        result(strategy="single"),
        result(strategy="fsdp2", variant="mended"),
        result(variant="gone"),
        result(variant="sft-broken"),
    ]
    (table,) = run.tables(results)
    assert [row.label for row in table.rows] == ["broken", "mended", "sft-broken", "gone", "broken bf16", "broken w4"]
    assert table.strategies == ["single", "ddp", "fsdp2"]
    assert sum(len(row.cells) for row in table.rows) == len(results), "two results share a place"
    one, other = result(), result(device="cuda")
    assert [row.label for row in run.tables([other])[0].rows] == ["broken"]
    assert [row.label for row in run.tables([other, one])[0].rows] == ["broken", "broken cuda"]


def exceptions_of(results, key="a"):
    return remedies.describe_outcomes(
        FAILURE, claims.verdicts_in_run(FAILURE, runs_results.outcomes(results))[key], runs_results.outcomes(results)
    )


def test_where_a_claim_does_not_hold_is_told_by_outcome_strategy_and_mode():
    results = [broken(strategy=s, checkpointing=c) for s in ("ddp", "zero2") for c in ("off", "reentrant")]
    mended = {"variant": "mended", "verdict": "expected"}
    results += [result(strategy="ddp", checkpointing=c, **mended) for c in ("off", "reentrant")]
    results += [result(strategy="zero2", **mended)]
    results += [result(strategy="zero2", checkpointing="reentrant", outcome="diverges", signature="nan", **mended)]
    assert exceptions_of(results) == ["diverges (nan) under zero2 (reentrant)"]
    assert exceptions_of([broken(), broken(variant="mended")]) == ["raises (torn)"], "everywhere is no place"
    assert exceptions_of([broken(), result(variant="mended")]) == []
    # Another world size is named only for what the default doesn't show.
    same = [entry(variant=v, world_size=w) for w in (2, 4) for entry, v in ((broken, "broken"), (broken, "mended"))]
    differs = [broken(strategy="zero2", world_size=w) for w in (2, 4)]
    differs += [result(variant="mended", strategy="zero2"), broken(variant="mended", strategy="zero2", world_size=4)]
    assert exceptions_of(same + differs) == ["raises (torn) under ddp, zero2 (w4)"]
    of_old = result(variant="dpo-broken")
    assert claims.verdicts_in_run(FAILURE, runs_results.outcomes([of_old, broken()]))["b"].word == "refuted", (
        "a variant that is gone stops it"
    )


def test_a_table_of_all_strategies_fits_a_hundred_columns():
    results = [
        result(variant=variant, strategy=strategy, checkpointing=mode)
        for variant in ("broken", "grpo-enable_input_require_grads", "x" * 60)
        for strategy in strategies.names()
        for mode in ("off", "reentrant", "non-reentrant")
    ]
    for shows_colour in (False, True):
        lines = shown(report_terminal.tables, results, terminal=shows_colour).splitlines()
        assert max(map(len, lines)) <= 100
        shown_cells = [word for line in lines if line.startswith("broken ") for word in line.split() if "✓" in word]
        assert shown_cells == ["✓✓✓"] * len(strategies.names()), "a strategy is missing"
        heads = Counter(word for line in lines if re.match(r" +(single|ddp|fsdp)", line) for word in line.split())
        assert set(heads.values()) == {1}, "a family is torn though there is room for it"
    narrow = shown(report_terminal.tables, results, width=60, terminal=True)
    assert narrow.count("✓") == len(results) + 1, "a narrow terminal loses cells"  # one is in the legend
    few = [result(), broken(checkpointing="reentrant"), result(strategy="zero2", checkpointing="non-reentrant")]
    text = shown(report_terminal.tables, few)
    assert re.search(r"^broken ✓✗·!··✓$", text, re.M), "symbols are not in the modes' order, or need colour"
    assert "3 cells: trains 2, raises 1; 1 not as expected" in text


def test_what_was_not_expected_comes_with_the_command_that_repeats_it():
    text = shown(report_terminal.unexpected, [result(), broken(strategy="zero2"), broken(detail="long " * 100)])
    assert "expected trains, got raises (torn): Torn: apart" in text
    assert "faultline run --cell example/broken/zero2/off/fp32/w2/cpu\n" in text, "the command is torn"
    assert max(map(len, text.splitlines())) <= 160
    other = shown(lambda console, results: report_terminal.unexpected(console, results, "trl==1.12.0"), [broken()])
    assert other.rstrip().splitlines()[-1].endswith(" --stack 'trl==1.12.0'"), "the command repeats it on another stack"
    assert not words.command("a/b", "x'; rm -rf ~"), "a stack's name gets to the shell as it is"
    assert shown(report_terminal.unexpected, [result()]).strip().count("\n") == 0
    several = shown(report_terminal.unexpected, [broken(variant=f"v{i}") for i in range(45)])
    assert several.count("faultline run") == 40 and "and 5 more" in several
    unproved = result(outcome="invalid", signature="evidence")  # which is never as expected
    assert "1 not as expected" in shown(report_terminal.tables, [unproved])
    assert unproved.cell.id in shown(report_terminal.unexpected, [unproved])


def test_hostile_text_does_not_steer_the_terminal():
    for function in (report_terminal.tables, report_terminal.unexpected):
        text = shown(function, [evil()], terminal=True)
        assert "[red]markup[/red]" in text, "rich took a text of a result for markup"
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\ud800-\udfff\u202e]", text), "it has a control character"
        assert "--cell" not in text, "a command is shown that does more than repeat a cell"


def test_progress_is_a_line_for_each_tenth_or_a_bar_on_a_terminal(monkeypatch):
    console = Console(file=io.StringIO(), width=100)
    with progress.progress(console, [], []):
        pass
    assert not console.file.getvalue(), "progress of nothing"
    known = [broken()] * 5
    monkeypatch.setattr(progress, "RARELY", 0)
    with progress.progress(console, [evil().cell] * 45, known, 2) as advance:
        for _ in range(45):
            advance(evil())
    lines = console.file.getvalue().splitlines()
    assert lines[0].startswith("50 cells, 5 of them known from before; 45 cells, ")
    assert lines[0].endswith(" with 2 workers")
    assert len(lines) == 10 and lines[-1].startswith("50/50 cells after 0:0") and "50 not as expected" in lines[-1]
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", console.file.getvalue())
    # On a terminal, what was not expected is counted as it comes.
    console = Console(file=io.StringIO(), width=100, force_terminal=True)
    with progress.progress(console, [result().cell, evil().cell], [broken()]) as advance:
        advance(result())
        advance(evil())
    text = console.file.getvalue()
    assert "3/3" in text and "2 not as expected" in text and "<img src=x" in text
    assert "\x1b]" not in text and "\x1b[2J" not in text
    with pytest.raises(KeyboardInterrupt), progress.progress(console, [evil().cell], []):
        raise KeyboardInterrupt
    assert console.file.getvalue().endswith("\x1b[?25h"), "the cursor stays hidden"


def test_the_legend_is_broken_between_symbols_on_a_terminal_and_nowhere_in_a_file():
    """Breaks when a terminal breaks a word of the legend, or a file has one in two lines."""
    for width in (60, 80, 120):
        for terminal in (True, False):
            lines = shown(report_terminal.legend, "· not run", width=width, terminal=terminal).splitlines()
            symbols = [f"{symbol} {name}" for name, symbol in run.SYMBOLS.items()]
            assert "  ".join(lines) == "  ".join([*symbols, "· not run"])
            assert max(map(len, lines)) <= width if terminal else len(lines) == 1


LISTED = [Cell("zero3_dummy_loss", "broken", "ddp"), Cell("zero3_dummy_loss", "no_dummy", "ddp")]


def test_the_overview_has_each_failure_with_its_title_and_its_cells(monkeypatch):
    """Breaks when nobody can learn from a list what the failures are."""
    monkeypatch.setattr(report_terminal, "failures", failures)
    title = failures()["zero3_dummy_loss"].title
    wide = shown(report_terminal.overview, LISTED, 12, width=150)
    assert f"zero3_dummy_loss      2  {title}\n" in wide and "\n2 cells of 1 failure.\n12 others can't exist" in wide
    assert "others" not in shown(report_terminal.overview, LISTED, 0)
    # In a narrow one no name is broken, so that it can be searched for.
    cells = [Cell(name, "broken", "ddp") for name in failures()]
    lines = shown(report_terminal.overview, cells, 0, width=80).splitlines()
    assert max(map(len, lines)) <= 80
    assert {*failures()} <= {line.split()[0] for line in lines if line}
    words = {word for failure in failures().values() for word in failure.title.split()}
    assert words <= {word for line in lines for word in line.split()}
    assert not [failure.name for failure in failures().values() if len(failure.title) > 78], "a title is a story"


STORY = {
    "": "It is torn.",
    "Cause": "Because of [this](../other/README.md).\n\nAnd that.",
    "Record": "[one](https://example.org)\n\n    RuntimeError: torn to pieces\n\nand more",
}


def fate(key, word, pro, cells, *against):
    return Fate(key, FAILURE.claims[key], word, pro, cells, against)


def test_a_failure_is_shown_with_its_cause_first_and_patterns_only_if_asked():
    """Breaks when somebody who asks what a failure is reads regular expressions first."""
    fates = [fate("a", "verified", 2, 2), fate("b", "conditional", 1, 2, "trains under ddp")]
    text = shown(report_failure.show, FAILURE, STORY, fates, "with torch 2")
    parts = ["Cause\n  Because of this.\n  And that.\n",
             "What you see\n  It is torn.\n      RuntimeError: torn to pieces\n",
             "Happens today\n", "What helps\n  verified     mend `it` [2 of 2 cells] (example.org)\n",
             "Also claimed\n  conditional  pray [1 of 2 cells; trains under ddp] (example.org)\n",
             "Variants\n  broken, sft-broken (only ddp): the failure\n  mended: mend `it`\n",
             "Records\n  since     always\n  until     never\n  measured  with torch 2\n  https://example.org/1\n"
             "  https://example.org/a\n", "Commands\n"]  # fmt: skip
    places = [text.index(part) for part in parts]
    assert places == sorted(places)
    assert "torn [a-z]+" not in text
    assert "torn: torn [a-z]+" in shown(report_failure.show, FAILURE, STORY, fates, "", True)
    long = fate("a", "verified", 12, 12, "trains under ddp, ddp-find-unused, zero2-small and fsdp1-no-shard, " * 2)
    piped = shown(report_failure.show, FAILURE, STORY, [long], "with torch 2")
    assert "[12 of 12 cells" in piped, "what is piped has a count on two lines, which no search finds"
    # What no cell could tell is no verdict, and what was refuted is no help.
    fates = [fate("a", "refuted", 0, 2), fate("b", "untested", 0, 0)]
    text = shown(report_failure.show, FAILURE, {}, fates, "")
    assert "What helps" not in text and "What doesn't\n  refuted      mend `it` [0 of 2 cells]" in text
    assert "Claimed, and no cell can tell\n  pray\n" in text
    # A way to notice a failure, which shows nothing, doesn't stand among what doesn't help.
    failure = failures()["grpo_lora_no_grad"]
    text = shown(report_failure.show, failure, {}, report_failure.fates(failure, []), "")
    remedies, _, also = text.partition("Also claimed")
    line = "refuted      shows it beforehand: check the trainable parameters"
    assert line in also and "beforehand" not in remedies


def test_the_newest_run_stands_beside_the_record():
    """Breaks when a run on this machine contradicts the record and nobody learns of it."""
    known = failures()["zero_double_reduction"]
    cells = [Cell(known.name, name, "zero2", "reentrant") for name in ("broken", "two_calls")]
    cells.append(Cell(known.name, "broken", "zero2", "non-reentrant"))
    outcomes = (("raises", "reduced-twice"), ("trains", ""), ("raises", "reduced-twice"))
    results = [entries.entry(cell, *did) for cell, did in zip(cells, outcomes, strict=True)]
    fates = {each.key: each for each in report_failure.fates(known, results)}
    assert fates["two_calls"].word == "refuted" and fates["two_calls"].against[0] == "your newest run: verified, 1 of 1"
    assert fates["non-reentrant"].against == ("your newest run: refuted, 0 of 1",)
    assert fates["one_call"].against == report_failure.fates(known, [])[3].against


def test_the_environment_can_be_pasted():
    stack = {"torch": "2.13", "x": {"y": "z " * 80}}
    facts = {"python": "3.11", "stack": stack, "gpus": [], "cores": 2, "a": ["b", "c"]}
    text = shown(report_terminal.environment, facts)
    assert text == f"python: 3.11\nstack:\n  torch: 2.13\n  x:\n    y: {'z ' * 79}z\ngpus: none\ncores: 2\na: b, c\n"


def test_junit_has_a_case_for_each_cell_and_a_failure_for_what_was_not_expected(tmp_path):
    impossible = result(strategy="fsdp2", outcome="impossible", detail="not here")
    invalid = result(strategy="zero1", outcome="invalid", signature="evidence")
    junit.write(tmp_path / "junit.xml", [result(), broken(strategy="zero2"), impossible, invalid])
    suite = ET.parse(tmp_path / "junit.xml").getroot()[0]
    assert [suite.get(key) for key in ("tests", "failures", "skipped")] == ["4", "2", "1"]
    cases = {case.get("name"): case for case in suite}
    failed = cases["broken/zero2/off/fp32/w2/cpu"]
    assert failed.get("classname") == "example" and failed.get("time") == "0.250"
    assert failed.find("failure").get("message") == "expected trains, got raises (torn)"
    properties = {each.get("name"): each.get("value") for each in failed.iter("property")}
    assert properties == {"outcome": "raises", "signature": "torn", "verdict": "unexpected failure"}
    assert cases["broken/fsdp2/off/fp32/w2/cpu"].find("skipped").get("message") == "not here"
    assert cases["broken/zero1/off/fp32/w2/cpu"].find("failure") is not None, "a cell without evidence passed"
    assert cases["broken/ddp/off/fp32/w2/cpu"].find("failure") is None
    junit.write(tmp_path / "junit.xml", [on_gpus.did(on_gpus.on("zero2"), "diverges", "differs")])
    basis = ET.parse(tmp_path / "junit.xml").find(".//property[@name='basis']")
    assert basis.get("value") == "cpu", "nobody learns that only the CPU was measured"
    junit.write(tmp_path / "junit.xml", [evil()])
    root = ET.parse(tmp_path / "junit.xml").getroot()
    failure = root.find(".//failure")
    assert "<img src=x onerror=alert(1)>" in failure.text and "\x1b" not in failure.text
    tags = ["testsuites", "testsuite", "testcase", "properties", *["property"] * 3, "failure"]
    assert [each.tag for each in root.iter()] == tags, "hostile text made an element"


def written(tmp_path, results, **facts):
    page.write(tmp_path / "report.html", results, RunInfo(**facts))
    return (tmp_path / "report.html").read_text(encoding="utf-8")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(JSON | st.text(alphabet="</script>!-\u2028\u2029&\\u003c"), st.floats() | st.lists(st.floats()))
def test_law_what_is_embedded_is_what_the_browser_reads(value, number):
    text = page.embed(value)
    assert json.loads(text) == value
    assert not set(text) & {*"<>&\u2028\u2029\n"}, "a sign that means something to HTML or JavaScript stayed"
    assert embedded(f'<script type="application/json" id="data">{text}</script>') == value
    json.loads(page.embed(page.tidy({"any": number})), parse_constant=pytest.fail)


def test_the_page_holds_every_cell_as_it_was(tmp_path):
    rank = replace(RANK, error=RankError("Torn", "apart", "Traceback: apart"), log="said", stack="at f")
    off = Deviation("w", "gradients", 1, 0, 0.25)
    entry = broken(relative_error=0.25, worst_parameter="w", errors=(off,), ranks=(rank,))
    data = embedded(written(tmp_path, [entry, result(strategy="zero2", checkpointing="reentrant")], finished=True))
    cells, shared = data["cells"], data["shared"]
    (section,) = data["sections"]
    (row,) = section["rows"]
    assert row["cells"] == [0, -1, -1, -1, 1, -1] and section["strategies"] == ["ddp", "zero2"]
    cell = cells[0]
    assert (cell["id"], cell["run"], cell["ok"]) == (entry.cell.id, words.command(entry.cell.id), False)
    assert [shared[cell[key]] for key in ("detail", "worst", "evidence")] == ["Torn: apart", "w", entry.evidence]
    (error,) = shared[cell["errors"]]
    assert [shared[error[0]], *error[1:]] == ["w", "gradients", 1, 0, "0.25"]
    rank = cell["ranks"][0]
    assert [shared[number] for number in rank[2:5]] == [asdict(entry.ranks[0].error), "at f", "said"]
    assert [claim["word"] for claim in section["claims"]] == ["untested", "conditional"]


def test_the_page_of_an_unknown_failure_and_of_cells_that_have_much_in_common(tmp_path):
    log = "the same long log " * 500
    results = [broken(variant=f"v{i}", ranks=(replace(RANK, log=log),)) for i in range(100)]
    assert written(tmp_path, results).count("the same long log the same") < 500
    assert (tmp_path / "report.html").stat().st_size < 200_000
    entry = replace(result(), cell=Cell("gone", "broken", "ddp"))
    assert embedded(written(tmp_path, [entry]))["sections"][0]["name"] == "gone"
    results = [broken(), result(strategy="zero2"), result(variant="mended")]
    assert written(tmp_path, results) == written(tmp_path, results)


def test_a_command_is_told_as_it_can_be_typed_where_one_is(tmp_path, monkeypatch):
    """Breaks when somebody in the folder of their log is told to type what only works in the clone."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert base_text.here("faultline show x") == "bin/faultline show x"
    monkeypatch.chdir(tmp_path)
    assert base_text.here("faultline show x") == f"{ROOT}/bin/faultline show x"
    (tmp_path / "faultline").symlink_to(ROOT / "bin" / "faultline")
    assert base_text.here("faultline show x") == "faultline show x"
    (tmp_path / "faultline").unlink()
    monkeypatch.setattr(base_text, "ROOT", tmp_path / "a clone")
    assert base_text.here("faultline list") == f"'{tmp_path}/a clone/bin/faultline' list"
    monkeypatch.setattr(base_text, "INSTALLED", True)
    assert base_text.here("faultline list") == "faultline list"
