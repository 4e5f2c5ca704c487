"""Findings as others get them: a failure's folder, a file that runs by itself, an issue."""

import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import EXIT_AS_EXPECTED, UsageError
from faultline.catalogue import loading
from lab.explore import findings, overview, publishing, skeleton
from lab.explore.case import Case
from lab.explore.findings import About, Finding, Seen
from lab.explore.overview import Numbers
from lab.programs import drawing
from lab.programs.program import VALUES, Program
from lab.programs.settings import SETTINGS, TRL
from tests.support.night import sampled

RAISED = "RuntimeError: size 3 of (a) must match 17"


def features(written):
    """The features that a table says can be written out, each with each of its values."""
    return [
        (name, value)
        for name, values in written.items()
        for value in (VALUES[name][1:] if values == skeleton.ANY else values)
    ]


def finding(chosen, outcome="diverges", kind="differs", home=Path("findings")):
    case = Case(drawing.sensible(Program.of(3, chosen)), "zero2")
    where = {"ddp": "trains", "zero2": f"{outcome} (other)"}
    seen = Seen(kind, outcome, "other", RAISED, where, {"deepspeed": "0.19.8"}, 3)
    return Finding(home / "zero_thing_differs", case, seen, About('A "thing" differs'))


@pytest.fixture
def adopting(tmp_path, monkeypatch):
    """Findings are adopted into a catalogue of the test's own."""
    monkeypatch.setattr(publishing, "REPROS", tmp_path)
    monkeypatch.setattr(publishing, "ROOT", tmp_path)


@pytest.mark.parametrize(("name", "value"), features(skeleton.WRITTEN))
def test_every_feature_can_be_written_out(name, value, tmp_path):
    """Breaks when a failure's folder doesn't load, or its model doesn't train in one process."""
    needed = drawing.needed(name)
    skeleton.write(finding({**needed, name: value}), tmp_path / "thing")
    assert loading.load(tmp_path / "thing").variant("broken")
    module = loading.load_module(tmp_path / "thing")
    setup = SimpleNamespace(reference=True, world_size=1, rank=0)
    built = module.scenario("broken", setup)
    assert built.micro_batches == (value if name == "accumulate" else 2 if name == "accumulating" else 1)
    loss = built.loss(built.model, built.batch(0, 0, 1))
    loss.backward()
    assert any(parameter.grad is not None and parameter.grad.any() for parameter in built.model.parameters())


@pytest.mark.slow
@pytest.mark.parametrize("trainer", sampled(TRL, 4))
def test_programs_in_trl_can_be_written_out(trainer, tmp_path):
    """Breaks when the file of a finding in a trainer of TRL can't be exported, or lacks a feature that it has."""
    for number, (name, value) in enumerate(features(skeleton.IN_TRL)):
        thing = finding({"through": trainer, name: value})
        another = name in SETTINGS and SETTINGS[name].family not in ("trainer", trainer)
        if another or name in ("through", "world_size") or name not in thing.case.program.features:
            continue
        home = tmp_path / f"thing{number}"
        skeleton.write(thing, home)
        assert loading.load(home).variant(f"{trainer}-broken")
        assert name not in SETTINGS or f"'{SETTINGS[name].name}'" in (home / "failure.py").read_text()
    compile(publishing.source(finding({"through": trainer, "adapter": "lora"})), "repro.py", "exec")


def test_what_no_file_has_yet_is_refused(tmp_path):
    """Breaks when a finding is written out as another training."""
    with pytest.raises(UsageError, match="backward"):
        skeleton.write(finding({"backward": "halves"}), tmp_path / "thing")
    with pytest.raises(UsageError, match="container"):
        skeleton.write(finding({"container": "nested"}), tmp_path / "thing")


@pytest.mark.parametrize("name", sampled([each.name for each in findings.every() if not each.about.failure], 8))
def test_every_finding_becomes_a_folder(name, adopting, tmp_path, capsys):
    """Breaks when a new finding can't enter the catalogue, or enters it without what nobody is told to write."""
    [each] = findings.by_name([name])
    assert publishing.adopt(name) == EXIT_AS_EXPECTED
    text, lacks = (tmp_path / name / "failure.py").read_text(), skeleton.not_written(each.case.program)
    assert loading.load(tmp_path / name) and text.endswith("\n") and ", )" not in text
    assert re.findall("by hand: (.*?)=", text) == lacks and ("by hand" in capsys.readouterr().out) == bool(lacks)
    assert each.about.since.removeprefix("since ") in text


@pytest.mark.parametrize(
    ("strategy", "words"),
    [("zero2", "ZeRO-2"), ("zero3-hpz", "ZeRO-3 (hpz)"), ("fsdp1-no-shard", "FSDP1 (no shard)"), ("ddp", "DDP")],
)
def test_an_issue_has_words_that_its_project_knows(strategy, words):
    """Breaks when upstream reads "fsdp1-full" and "diverges (differs)"."""
    assert publishing.engine(strategy) == words
    assert publishing.does("diverges (differs)") == "Trains otherwise than in one process, without an error"
    assert publishing.does("raises (other)") == "Raises an error"
    assert publishing.does("crashes (SIGSEGV)") == "Crashes (SIGSEGV)"


def test_an_error_is_known_again_by_its_words(tmp_path):
    """Breaks when the file of a finding that raises can't see that it did."""
    skeleton.write(finding({"tied": "head"}, "raises", "raises RuntimeError"), tmp_path / "thing")
    failure = loading.load(tmp_path / "thing")
    assert failure.signature(RAISED.replace("17", "9000")) == "raises-runtimeerror"
    assert failure.signature("RuntimeError: another one") == "other"


def test_a_finding_becomes_a_folder_once(adopting, tmp_path, monkeypatch, capsys):
    """Breaks when a failure's folder is overwritten, there is a second copy, or a name that isn't there gives one."""
    one = finding({"tied": "head"})
    monkeypatch.setattr(findings, "every", lambda: [replace(one, about=replace(one.about, failure="zero3_x"))])
    with pytest.raises(UsageError, match="is zero3_x of the catalogue already"):
        publishing.adopt("zero_thing_differs")
    monkeypatch.setattr(findings, "every", lambda: [one])
    assert publishing.adopt("zero_thing_differs") == EXIT_AS_EXPECTED
    assert "step 4" in capsys.readouterr().out
    assert {file.name for file in (tmp_path / "zero_thing_differs").iterdir()} == {
        *("README.md", "expected.toml", "failure.py", "recognise.toml")
    }
    with pytest.raises(UsageError, match="exists"):
        publishing.adopt("zero_thing_differs")
    with pytest.raises(UsageError, match="no finding other"):
        publishing.adopt("other")


def test_files_that_do_not_reproduce_are_not_kept(tmp_path, monkeypatch, capsys, page):
    """Breaks when somebody is sent a file that shows nothing, or what they wrote by hand is lost."""
    (tmp_path / "zero_thing_differs").mkdir()
    monkeypatch.setattr(findings, "every", lambda: [finding({"tied": "head"}, home=tmp_path)])
    for code, there in ((0, ["issue.md", "repro.py"]), (1, [])):
        monkeypatch.setattr(publishing.prove, "run", lambda text, code=code: (code, "loss 0.3\n\x1b[1mdone"))
        assert publishing.files(()) == code
        assert sorted(file.name for file in (tmp_path / "zero_thing_differs").iterdir()) == there
        if not code:
            issue = (tmp_path / "zero_thing_differs" / "issue.md").read_text()
            assert "\x1b" not in issue
            assert "repro.py" in issue
    assert "not reproduced" in capsys.readouterr().out
    (tmp_path / "zero_thing_differs" / "repro.py").write_text("by hand")
    monkeypatch.setattr(findings, "every", lambda: [finding({"backward": "halves"}, home=tmp_path)])
    for code in (0, 1):
        monkeypatch.setattr(publishing.prove, "run", lambda text, code=code: (code, f"ran {text}"))
        assert publishing.files(()) == code
        kept, issue = ((tmp_path / "zero_thing_differs" / name).read_text() for name in ("repro.py", "issue.md"))
        assert kept == "by hand" and "ran by hand" in issue, "what somebody wrote stays, and its issue is made anew"


@pytest.mark.slow
@pytest.mark.nightly
def test_the_file_of_a_finding_reproduces_it_in_an_empty_folder():
    """Breaks when what is sent upstream doesn't show what was seen."""
    made = next(each for each in findings.every() if each.about.failure == "zero3_accumulation_outside_forward")
    code, output = publishing.prove.run(publishing.source(made))
    assert code == 0, output[-2000:]
    assert "REPRODUCED: no error" in output


# The page of the findings: what is on it, and in which order.

OUTCOMES = ("diverges", "hangs", "crashes", "raises")
NUMBERS = Numbers(7, 12.5, 100, 400, 20, 12, 3, 1, 18, 18, 40, 39, "torch 2.13.0", small=15)


def row(name="a", outcome="diverges", status="new", **chosen):
    seen = Seen("differs", outcome, "differs", "x | y", {"zero2": outcome}, {"deepspeed": "0.19.8"})
    return Finding(Path(name), Case(Program.of(0, chosen), "zero2"), seen, About("A title", status))


def test_the_page_is_that_of_the_findings_that_are_kept():
    """Breaks when a finding is added, or looked into, and the page doesn't say so: `maintain findings --page`."""
    assert overview.page(findings.every(), overview.read()) in overview.PAGE.read_text()


@given(st.permutations([(status, outcome) for status in findings.STATUSES for outcome in OUTCOMES]))
def test_new_silent_and_usual_ones_come_first(places):
    """Breaks when what nobody knows and nobody sees, or meets everybody, stands below an error, or a rare setting."""
    every = [row(f"{status}-{outcome}", outcome, status) for status, outcome in places]
    ordered = sorted(every, key=overview.grave)
    assert [(each.about.status, each.seen.outcome) for each in ordered] == [
        (status, outcome) for status in findings.STATUSES for outcome in OUTCOMES
    ]
    rare, usual = row("a", **{"zero.overlap_comm": True}), row("b", accumulate=2, method="model")
    assert sorted([rare, usual], key=overview.grave) == [usual, rare]


def test_an_exploration_is_added_once_it_ended(tmp_path, monkeypatch, capsys, page):
    """Breaks when the funnel has other numbers than an exploration came to."""
    file = tmp_path / "explorations.jsonl"
    monkeypatch.setattr(overview.read, "__defaults__", (file,))
    monkeypatch.setattr(overview.add, "__defaults__", (file,))
    with pytest.raises(UsageError, match=r"numbers\.json"):
        publishing.count_in(str(tmp_path))
    (tmp_path / "numbers.json").write_text(json.dumps(vars(NUMBERS)))
    assert publishing.count_in(str(tmp_path)) == EXIT_AS_EXPECTED
    assert publishing.count_in(str(tmp_path)) == EXIT_AS_EXPECTED
    assert overview.read(file) == [NUMBERS], "an exploration counts once"
    assert "| 7 | 12.5 | 100 | 400 | 20 | 12 | 15 | 3 (1) | 18 of 18 | 39 of 40 |" in page.read_text()
    assert "rewritten" in capsys.readouterr().out


def test_a_finding_of_an_exploration_is_kept(tmp_path, monkeypatch, capsys, page):
    """Breaks when what was found can't be kept by a command, or takes the place of what is kept."""
    monkeypatch.setattr(findings.every, "__defaults__", (tmp_path / "findings",))
    monkeypatch.setattr(findings, "FINDINGS", tmp_path / "findings")
    home = tmp_path / "explore" / "zero_thing"
    home.mkdir(parents=True)
    made = row("zero_thing")
    (home / findings.SPEC).write_text(json.dumps(made.case.as_json()))
    findings.write_seen(home, made.seen)
    (home / findings.ABOUT).write_text('title = "What was found"\nstatus = "new"\n')
    assert publishing.take_in(str(home)) == EXIT_AS_EXPECTED
    assert [each.name for each in findings.every()] == ["zero_thing"] and "What was found" in page.read_text()
    assert "findings/zero_thing: write the cause" in capsys.readouterr().out
    with pytest.raises(UsageError, match="findings/zero_thing exists"):
        publishing.take_in(str(home))
    with pytest.raises(UsageError, match="not the folder of a finding"):
        publishing.take_in(str(tmp_path))


def test_planted_faults_are_counted_by_kind_over_all_explorations():
    """Breaks when a fault that was missed in one exploration is hidden by those that were seen in another."""
    one, other = (replace(NUMBERS, by_kind={"bit": seen}) for seen in ({"ranks-differ": 2, "": 1}, {"ranks-differ": 3}))
    [_, _, line, _, never] = overview.planted([NUMBERS, one, other])
    assert line == "| bit: one rank's weights differ in one bit | 5 of 6 | 5 ranks-differ |"
    assert never.startswith("Not drawn: ") and "buffer" in never, "a kind that was never drawn is not hidden"
    assert overview.planted([NUMBERS]) == []
    [*_, last] = overview.funnel([NUMBERS, replace(NUMBERS, seed=8, minutes=47.5)])
    assert last == "| all | 1.0 hours | 200 | 800 | 40 | 24 |  | 6 (2) | 36 of 36 | 78 of 80 |"
    assert overview.line(replace(row(), about=About("a | b"))).count(" | ") == 6, "a title ends a table's cell"


def test_no_finding_names_what_others_do_not_have():
    """Breaks when somebody upstream reads the name of a folder of ours, or a traceback has a machine's own paths."""
    names = [file.parent.name for file in findings.FINDINGS.glob("*/issue.md")]
    for file in findings.FINDINGS.glob("*/issue.md"):
        text = file.read_text(encoding="utf-8")
        assert not [name for name in names if re.search(rf"\b{name}\b(?!/)", text)], file
    files = [file for file in findings.FINDINGS.rglob("*") if file.is_file()]
    assert not [file for file in files if re.search(r"[\"' ]/\S+/site-packages/", file.read_text(encoding="utf-8"))]
