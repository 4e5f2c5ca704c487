"""`check`: what it takes for a target, what it says of a failed one."""

from __future__ import annotations

import io
import json
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNDECIDED, EXIT_UNEXPECTED, ServerDied, UsageError
from faultline.base.paths import ROOT
from faultline.catalogue import outcomes
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.finding import Difference, Finding
from faultline.cells.selection import Selection
from faultline.check import cell as checking
from faultline.check import (
    command,
    findings,
    known,
    model_facts,
    next_steps,
    remedies,
    script,
    target,
    variations,
    view,
)
from faultline.check.command import CheckResult
from faultline.diagnose import diagnosis, lines
from faultline.maintain import score
from faultline.observations import matching
from faultline.ranks.facts import Facts
from faultline.ranks.job import Job
from faultline.ranks.report import ErrorReport, Frame, Raised, Report, error_report
from faultline.report.claims import ORDER
from faultline.runs import measurement, nodes, oracle, runner, storage
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.results import Beside, Checked, Deviation, RankError, RankResult
from faultline.runs.storage import RunFolder
from faultline.stacks.environments import Environment
from tests.support import entries, reports

FACTS = Facts(model="Model", parameters=10, trainable=10)
TWICE = replace(FACTS, several_calls=("tower",))


def error(text, kind="RuntimeError"):
    return RankResult(0, error=RankError(kind, text, text))


CELL = Cell("check", "model", "ddp")
WAITS = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
REDUCED = "AssertionError: The parameter tower.weight has already been reduced."
AXES = "precision", "world_size", "life", "device"


def entry(outcome="trains", where="ddp", **changes):
    """The result of a check's cell under ``strategy/mode``; `changes` are of its other axes, of the result, or of what
    only a check has."""
    strategy, _, mode = where.partition("/")
    axes = {name: changes.pop(name) for name in AXES if name in changes}
    only = {each.name for each in fields(Checked)}
    checked = Checked(**{"facts": FACTS} | {name: changes.pop(name) for name in only if name in changes})
    usual = {"ranks": (RankResult(0),), "stack": {}, "checked": checked}
    cell = replace(CELL, strategy=strategy, checkpointing=mode or "off", **axes)
    return entries.entry(cell, outcome, **(usual | changes))


def raises(words, where="ddp", **changes):
    """The result of a cell that ended with this error."""
    return entry("raises", where, detail=words, **{"ranks": (error(words),), **changes})


def of(result, facts):
    return replace(result, checked=replace(result.checked, facts=facts))


WRITTEN = """
from elsewhere import imported
class Net(Base):
    def __init__(self, width): ...
class Deep(Net): ...
class Ready(Net):
    def __init__(self, width=8): ...
def build(): ...
made = build
"""


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nowhere.json", "nothing is downloaded"),
        ("Qwen/Qwen2-0.5B", "nothing is downloaded"),
        ("empty", "no config.json"),
        ("train.py", "name the function that builds the model, as {}/train.py:build"),
        ("train.py:biuld", "has no function biuld; did you mean build?"),
        ("train.py:nothing_alike", "has no function nothing_alike; it has build"),
        ("train.py:Net", "Net is called without arguments, and needs width"),
        ("train.py:Deep", "Deep is called without arguments, and needs width"),
        *((f"train.py:{name}", "") for name in ("Ready", "imported", "made")),
        ("list.json", "neither"),
        ("binary.json", "neither"),
        ("config.json:build", "a config, which has no function"),
    ],
)
def test_what_is_no_target_is_refused_in_one_line(tmp_path, text, reason):
    """A wrong path would otherwise be found out after a rank server has started, by a traceback; breaks also when a
    function from elsewhere is refused."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "train.py").write_text(WRITTEN)
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "binary.json").write_bytes(b"\xff\x00")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    if not reason:
        assert target.parse(f"{tmp_path}/{text}", "").function == text.partition(":")[2]
        return
    with pytest.raises(UsageError) as error:
        target.parse(f"{tmp_path}/{text}", "")
    assert reason.format(tmp_path) in str(error.value) and "\n" not in str(error.value)


def test_ranks_that_work_are_not_told_of_collectives():
    """Breaks when somebody looks for a rank that waits, where a backward pass runs again and again."""
    for detail, said in (
        ("every rank stood at the same place for 20 s; rank 0: wait (a.py:1)", "Every rank has to call"),
        ("still running after 120 s; rank 0: forward (linear.py:134)", "its ranks were at work all the time"),
    ):
        [group] = findings.groups([entry("hangs", signature="no-progress", detail=detail, ranks=())])
        assert next_steps.mismatched(group)[0].startswith(said)


def test_units_are_named_where_a_first_forward_pass_differs():
    """Breaks when a model that puts other weights into a module is told of a gradient penalty."""
    facts = replace(FACTS, units=("Linear",), double_backward=True)
    finding = Finding(first=Difference(1, 0, "forward", "net.0", 0.1))
    early = entry("diverges", "fsdp2", signature="unmoved", finding=finding, facts=facts)
    later = replace(early, finding=Finding(first=Difference(1, 0, "backward", "net.0", 0.1)))
    assert known.recognised(early) == (None, ())
    assert known.recognised(later)[0].failure.name == "double_backward_through_shards"
    [group] = findings.groups([early])
    assert any("`torch.func.functional_call`" in line for line in next_steps.next_steps(group, [early]))
    [group] = findings.groups([later])
    assert next_steps.of_units(group) == []


def test_a_model_of_ones_own_has_every_life():
    """Breaks when a life can't be asked for, or one that an engine doesn't promise is run."""
    asked = Selection(life=("resumed", "resized"), strategy=("ddp", "zero3"), checkpointing=("off",))
    lives = {(cell.strategy, cell.life) for cell in command.selected(asked)}
    assert lives == {("ddp", "resumed"), ("ddp", "resized"), ("zero3", "resumed")}


def test_a_target_and_its_adapter_are_read_as_they_are_written(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    assert target.parse(str(tmp_path), "") == target.parse(str(tmp_path / "config.json"), "")
    assert target.adapter("r=4,target=q_proj+v_proj,alpha=16,dropout=0.05") == {
        "r": 4,
        "lora_alpha": 16.0,
        "lora_dropout": 0.05,
        "target_modules": ["q_proj", "v_proj"],
    }
    assert target.adapter("target=all-linear")["target_modules"] == "all-linear"


@given(st.text())
def test_no_adapter_is_read_from_anything_else(text):
    """Whatever is typed ends in a LoRA config or in one line."""
    try:
        matches = target.adapter(text)
    except UsageError as error:
        assert "--lora" in str(error) and "\n" not in str(error)  # noqa: PT017 - most texts are refused, not all
    else:
        assert not text or matches["r"] >= 1


ME = Path("/home/me")
SUITE = Frame(f"{ROOT}/faultline/ranks/main.py", 35, "main", "_run(job, rank, report)")
BUILD = Frame("/home/me/train.py", 3, "build", "return helper(None)")
HELPER = Frame("/home/me/train.py", 7, "helper", "x.shape")
LIBRARY = Frame("/home/me/.venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", 275, "spawn", "p.start()")


def raised(text, *frames, kind="error", follows=False):
    return Raised(kind, text.partition(": ")[2], f"{text}\n", frames, follows)


def problem(*chain, fault_at=""):
    """An error as a rank reports it."""
    return ErrorReport("E", chain[-1].message, "", fault_at, chain[-1].kind, chain=chain)


def test_an_error_is_told_by_its_first_line_and_the_users_own_frames():
    """Breaks when somebody offline is told to see a manual, and not that their script downloads a model; when frames
    of this suite hide one's own, or its fault is the model's; or when a file that Python can't parse has no place."""
    first = raised("ConnectionError: no route", BUILD)
    last = raised("OSError: no connection\nSee the manual\n  about offline mode.", BUILD)
    message, traceback = checking.explained(problem(first, last), ME)
    assert message == "OSError: no connection"
    assert "During handling of the above exception" in traceback and "no route" in traceback
    words = '  File "/home/me/other.py", line 2\n    def (\n        ^\nSyntaxError: invalid syntax'
    message, traceback = checking.explained(problem(raised(words, SUITE)), ME)
    assert message == "SyntaxError: invalid syntax" and "/home/me/other.py" in traceback
    fault = problem(raised("KeyError: 'w'", SUITE, BUILD, SUITE), fault_at="compare.py:95 in digest")
    message, traceback = checking.explained(fault, ME)
    assert message.startswith("a fault of Faultline, not of the model: compare.py:95 in digest: E: 'w'")
    assert traceback.endswith("return helper(None)\n")


def test_a_refusal_is_one_line_with_the_cause_alone():
    """Breaks when a refusal has our frames for a traceback, or a script that wraps it hides it."""
    cause = raised("SystemExit: 3", SUITE, BUILD, HELPER)
    refusal = raised("Refused: train.py exits (code 3)", SUITE, kind="refused", follows=True)
    message, traceback = checking.explained(problem(cause, refusal), ME)
    assert message == "train.py exits (code 3)"
    assert traceback.endswith("SystemExit: 3\n") and "above exception" not in traceback and "Refused" not in traceback
    wrapped = raised("RuntimeError: training failed", SUITE, BUILD, follows=True)
    assert checking.explained(problem(refusal, wrapped), ME)[0] == "train.py exits (code 3)"
    assert checking.explained(problem(raised("Refused: no", SUITE, kind="refused")), ROOT) == ("no", "")


def test_of_a_script_that_starts_processes_its_own_line_is_the_last():
    """Breaks when the traceback ends in a library's frames, without an error."""
    frames = (SUITE, BUILD, HELPER, LIBRARY)
    refusal = raised("Refused: the script starts processes", *frames, SUITE, kind="refused")
    message, traceback = checking.explained(problem(refusal), ME)
    assert message == "the script starts processes" and traceback.endswith("    x.shape\n")
    other = checking.explained(problem(raised("RuntimeError: the script starts processes", *frames, SUITE)), ME)[1]
    assert "p.start()" in other and other.endswith("RuntimeError: the script starts processes\n")


def test_a_module_that_is_missing_is_not_blamed_on_the_stack():
    """Breaks when somebody whose own helpers.py lies elsewhere is told to choose another release of torch."""
    cause = raised("ModuleNotFoundError: No module named 'helpers'", SUITE, BUILD)
    lacks = raised("Impossible: this stack lacks it: No module named 'helpers'", SUITE, kind="impossible", follows=True)
    message, traceback = checking.explained(problem(cause, lacks), ME)
    assert message.startswith("No module named 'helpers': if it is your own file") and "--stack" in message
    assert "/home/me/train.py" in traceback
    library = raised("Impossible: this stack lacks it: cannot import name 'Gemma3'", SUITE, kind="impossible")
    assert checking.explained(problem(library), ME)[0].startswith("this stack lacks it: cannot import name 'Gemma3'")


def test_an_error_in_ones_own_code_is_told_with_its_lines():
    """Breaks when nine cells raise and nobody says at which line, or all nine tell the same lines."""
    error = problem(raised("ValueError: no", SUITE, BUILD, HELPER, LIBRARY))
    end = Ended([RankEnd(Report(error=error))])
    judged = oracle.Judgement(outcomes.Outcome.RAISES, "", "ValueError: no", 0)
    at = checking.raised_at(end, judged, ME)
    assert at == ("train.py:3 in build: return helper(None)", "train.py:7 in helper: x.shape")
    answer = shown([raises(f"ValueError: {cell}", cell, at=at) for cell in ("zero2", "fsdp2")])
    assert answer.count(at[-1]) == 1
    assert not checking.raised_at(end, judged, Path("/home/you"))


def unmoved(*names, mode="reentrant"):
    """The result under FSDP1 of a model of which a checkpoint cuts a block off, and these weights never move."""
    finding, facts = Finding(unmoved=names, unmoved_count=len(names)), replace(FACTS, frozen_input=("bs.0",))
    return entry("diverges", f"fsdp1-full/{mode}", signature="unmoved", finding=finding, facts=facts)


def spoiled(parameter):
    """The result under ZeRO-3 of a model with a weight that is read elsewhere, where this gradient differs first."""
    finding = Finding(first=Difference(1, 0, "backward", "", 0.5, parameter))
    facts = replace(FACTS, read_outside=("emb.weight",), tied=(("emb.weight", "head.weight"),))
    return entry("diverges", "zero3", signature="differs", finding=finding, facts=facts)


DOUBLE, CUT = "zero_double_reduction", "reentrant_frozen_embeddings_adapters"


@pytest.mark.parametrize(
    ("result", "name", "sure"),
    [
        # The words alone are shared with other mistakes: a model that runs no module twice has another fault.
        (raises(REDUCED, "zero2/reentrant", facts=TWICE), DOUBLE, "certain"),
        (raises(REDUCED, "zero2/reentrant"), None, ""),
        # Without a word it is known where it was measured to diverge.
        (entry("diverges", "zero3-small/reentrant", signature="differs", facts=TWICE), DOUBLE, "likely"),
        (entry("diverges", "zero3-small/non-reentrant", signature="differs", facts=TWICE), None, ""),
        (entry("diverges", "zero3-small/reentrant", signature="differs"), None, ""),
        # A parameter that DDP waits for is no failure of ZeRO-3's, to which only a remedy leads.
        (raises(WAITS, "ddp/reentrant"), None, ""),
        (raises(WAITS, "ddp/reentrant", facts=replace(FACTS, no_gradient=("x",))), "ddp_unused_vision_tower", "likely"),
        # Adapters that are cut off, where the failure was measured to train; and no other weight that never moves.
        (unmoved("bs.0.w"), CUT, "likely"),
        (unmoved("bs.0.w", mode="off"), None, ""),
        (unmoved("bs.0.w", "head.w"), None, ""),
        (unmoved("bs.01.w"), None, ""),
        # A weight that is read elsewhere spoils its own gradient, and no other's before.
        (spoiled("emb.weight"), "penalty_outside_forward", "likely"),
        (spoiled("head.weight"), "penalty_outside_forward", "likely"),
        (spoiled("norm.weight"), None, ""),
    ],
)
def test_a_failure_is_known_by_what_it_says_does_and_needs_of_a_model(result, name, sure):
    """Breaks when somebody's failure has no name, or the name and the remedies of another."""
    match, _ = known.recognised(result)
    assert (match and (match.failure.name, match.sure)) == (name and (name, sure))
    assert not match or result.raised or match.signature == result.signature


def test_what_a_model_is_like_is_no_reason_where_it_trains_in_another_mode():
    """Breaks when a model that reads a weight outside of its module, and trains so, gets that for any other error."""
    facts = replace(FACTS, read_outside=("head.weight",))
    wrong = [raises("E: size mismatch", f"{name}/reentrant", facts=facts) for name in ("zero3", "fsdp2")]
    groups = findings.groups([*wrong, entry("trains", "zero3", facts=facts)])
    named = {group.failure and group.failure.name: group for group in groups}
    assert named.keys() == {None, "penalty_outside_forward"}
    assert [result.cell.strategy for form in named[None].forms for result in form.results] == ["zero3"]


@pytest.mark.parametrize(
    ("facts", "finding"),
    [
        (Facts(left_unlike=("bank",)), Finding(first=Difference(2, 0, "forward", "", "", ""))),
        (Facts(moved_by_hand=("target.w",)), Finding(unmoved=("target.w",), apart=("queue",))),
    ],
)
def test_what_a_model_changes_by_itself_is_no_known_failure(facts, finding):
    """Breaks when a cache or a target network is told as what is known of models that read weights as this one does."""
    facts = replace(facts, model="M", read_outside=("emb.weight",), batch_statistics=("norm",))
    places = ("ddp", "zero3", "fsdp2")
    wrong = [entry("diverges", at, signature="unmoved", finding=finding, facts=facts) for at in places]
    [group] = findings.groups(wrong)
    assert group.failure is None
    assert not any("a smaller model" in line for line in next_steps.next_steps(group, wrong)) or facts.left_unlike


def test_a_queue_that_is_gathered_over_ranks_is_no_fault_of_an_engine():
    """Breaks when MoCo, whose queue has the rows of all ranks, is called wrong everywhere, and no more is said."""

    def left(strategy, error):
        finding = Finding(first=Difference(1, 0, "buffers", "", error, "queue"))
        checked = Checked(collectives=("all_gather (moco.py:7)",))
        return entry("diverges", strategy, signature="buffers-differ", finding=finding, checked=checked)

    def steps(*results):
        return " ".join(next_steps.next_steps(findings.groups(results)[0], results))

    same = left("ddp", 0.8), left("zero2", 0.802)
    assert "for others' values (all_gather (moco.py:7))" in steps(*same)
    assert "all engines leave the same" in steps(*same)
    for others in ([left("ddp", 0.8), left("zero2", 0.7)], [left("ddp", 0.8)], [*same, entry("trains")]):
        assert "is no judge" in steps(*others) and "leave the same" not in steps(*others)
    assert "asks" not in steps(*[replace(each, checked=Checked()) for each in same])


@pytest.mark.parametrize(("order", "said"), [(("base",), True), (("base", ""), False)])
def test_an_error_of_a_model_whose_forward_pass_never_runs_says_so(order, said):
    """Breaks when ZeRO-3 fails in words of its own on a policy that only a method runs, and no more is said."""
    result = raises("AssertionError: active_backward_submodules is empty", "zero3", facts=replace(FACTS, order=order))
    [group] = findings.groups([result])
    assert ("own forward pass never runs" in " ".join(next_steps.next_steps(group, [result]))) is said


def test_what_agrees_with_the_mean_of_losses_alone_is_said_where_another_cell_is_wrong():
    """Breaks when DDP, which keeps rank 0's memory bank, is named as the way to train like one process."""
    with_bank = variations.with_other_run(entry("trains", "ddp"), variations.ROWS, entry("diverges", "ddp"))
    lines = next_steps.agreeing([with_bank, entry("trains", "ddp-static-graph"), entry("diverges", "zero2")])
    assert lines == ["agree with a single process: ddp, ddp-static-graph, but not with one process on all rows: ddp"]
    of_all = variations.with_other_run(entry("trains", "ddp"), variations.SHARES, entry("diverges", "ddp"))
    [line] = next_steps.agreeing([of_all, entry("diverges", "zero2")])
    assert line.endswith("but not with the mean of the ranks' losses in one process: ddp")


def test_one_error_of_an_engine_is_one_failure():
    """Breaks when the variants of a strategy that no cell was run under have the same error without its name."""
    words = "RuntimeError: self.dim() cannot be 0 to view Float as Byte (different element sizes)"
    groups = findings.groups([raises(words, name) for name in ("zero2", "zero2-small", "fsdp2")])
    named = {result.cell.strategy: each.failure for each in groups for form in each.forms for result in form.results}
    assert named["zero2"] is named["zero2-small"] and named["zero2"].name == "zero_broadcast_of_scalar_weights"
    assert named["fsdp2"] is None


def test_each_engine_refuses_in_its_words_and_no_title_is_of_another_engine():
    """Breaks when a refusal is shown with another engine's text, or beside the story of an engine that didn't run."""
    words = {
        "zero2": "RuntimeError: self.stride(-1) must be 1 to view Float as Byte (different element sizes), but got 8",
        "fsdp2": "NotImplementedError: FSDP does not support non-contiguous parameters yet: param.shape=[8]",
    }
    text = shown([*(raises(refusal, name) for name, refusal in words.items()), entry("trains")])
    for name, refusal in words.items():
        assert f"  {name}: {refusal}" in text
    assert "fsdp1_no_shard_scrambles_gradients  the same error, under other engines\n" in text
    assert "agree with a single process: ddp" in text, "what has a name says where it trains, too"


def test_ranks_that_run_different_modules_are_told_what_to_do():
    """Breaks when a crash under ZeRO is explained by what stops DDP, and no more."""
    facts = replace(FACTS, unequal=("exit",))

    def advice(result):
        [group] = findings.groups([of(result, facts)])
        return next_steps.unlike_modules(group)

    [line] = advice(entry("crashes", "zero3"))
    assert line.startswith("ranks run different modules (exit)") and "0 times" in line
    [silent] = advice(entry("diverges", finding=Finding(unmoved=("exit.weight",), unmoved_count=1)))
    assert "0 times" in silent and "collectives" not in silent
    assert not advice(entry("diverges", finding=Finding(unmoved=("other.weight",), unmoved_count=1)))
    assert not advice(raises("E: x"))


def test_what_runs_by_the_rows_is_not_told_of_the_ranks():
    """Breaks when a container of what runs for some rows only is said to run whatever the rows are."""
    facts = replace(FACTS, unequal=("blocks.1.0", "exit"))
    names = ("blocks.1", "blocks.1.0.inner", "blocks.1.act", "exit", "exits")  # an `act` has no weights
    [line] = model_facts.by_rank([entry(by_rank=names, facts=facts)])
    assert line == "exits: run on some ranks only, whatever their rows are"


def test_a_script_is_offered_where_there_is_one():
    """Breaks when the last line of an answer is a command that is refused."""
    ends = [entry("diverges"), entry("raises", "zero3-small"), entry("hangs"), entry("crashes", signature="SIGSEGV")]
    assert [script.exportable(each) for each in ends] == [True] * 4
    lives = [entry("diverges", life="resumed"), entry("diverges", device="cuda")]
    killed = [entry("crashes", signature=signature) for signature in ("SIGKILL", "silent-exit")]
    assert [script.exportable(each) for each in (*lives, *killed)] == [False] * 4


def test_what_a_script_can_show_is_exported_first(monkeypatch):
    """Breaks when --export refuses a resumed life that differs, and another cell could be shown; when a script shows
    nothing, or the interpreter's reason not to build a model again is lost."""
    resumed, shapes = entry("diverges", life="resumed", signature="resumed-differs"), raises("shapes", "zero3")
    assert script.pick_result([resumed, shapes]) == shapes
    assert script.pick_result([resumed]) == resumed, "so that the answer says why there is none"
    with pytest.raises(UsageError, match="nothing to export"):
        script.pick_result([entry()])
    refused = script.Written(refused="some of its blocks share weights")
    monkeypatch.setattr(script, "_describe", lambda *given: refused)
    with pytest.raises(script.NotExportable, match="share weights"):
        script.write(target.parse(f"{__file__}:entry", ""), entry("diverges"), Path("repro.py"), "python")


def test_what_ends_one_process_says_nothing_of_a_resized_life(monkeypatch):
    """Breaks when a process that dies for lack of memory makes a cell impossible, and the check agrees."""
    monkeypatch.setattr(nodes, "run", lambda server, job: Ended([]))
    cell, server = replace(CELL, life="resized"), None
    target = SimpleNamespace(for_ranks=lambda ranks: None)
    for outcome, expected in {
        "trains": None,
        **dict.fromkeys(("diverges", "raises"), ("impossible", "")),
        "crashes": ("invalid", "reference-died"),
        **dict.fromkeys(("hangs", "invalid"), ("invalid", "reference")),
    }.items():
        judged = oracle.Judgement(outcomes.Outcome(outcome), "", "why")
        refused = checking.not_resizable(target, server, cell, Job(cell), lambda cell, ended, it=judged: it)
        assert (refused and (refused.outcome, refused.signature)) == expected
        assert refused is None or "why" in refused.detail


def test_a_hang_is_one_wherever_its_ranks_were():
    """Breaks when each strategy under which a model hangs is a finding of its own."""
    detail = "still running after 9 s; rank 0: wait ({})"
    hung = [entry("hangs", name, detail=detail.format(name)) for name in ("zero2", "fsdp2")]
    assert len(findings.groups(hung)) == 1


def test_one_failure_is_told_once_whatever_its_forms():
    """A user with nine failing cells of one cause needs one answer, with the remedies of all forms together."""
    words = {
        "zero2": "AssertionError: The parameter tower.w has already been reduced",
        "ddp": 'File "torch/utils/checkpoint.py"\nExpected to mark a variable ready only once',
    }
    matches = [raises(text, f"{name}/reentrant", facts=TWICE) for name, text in words.items()]
    groups = findings.groups([*matches, entry()])
    assert len(groups) == 1 and len(groups[0].forms) == 2
    fates = {fate.key: fate for fate in groups[0].fates}
    helps = fates["non-reentrant"]
    assert helps.word == "verified" and helps.cells == helps.speak_for > 3, "non-reentrant helps against both"
    assert [fate.word for fate in groups[0].fates] == sorted((f.word for f in fates.values()), key=ORDER.index)


READY = (score.NEAR_MISSES / "made-full-fine-tune-that-looks-for-unused-parameters.log").read_text()


def test_both_commands_give_one_answer_to_one_error():
    """Breaks when a model without an adapter or a tower is told by `check` that it is LoRA, by `diagnose` a tower."""

    def ended(log):
        return raises(log[READY.index("RuntimeError: ") :], "ddp-find-unused/reentrant", ranks=(error(log),))

    answer = ended(READY)
    match, either = known.recognised(answer)
    other = diagnosis.diagnose(lambda wanted: lines.lines("log", io.BytesIO(READY.encode()), wanted))
    assert {match.failure.name for match in other.several} == {each.failure.name for each in (match, *either)}
    assert {(each.mechanism, each.sure) for each in (match, *other.several)} == {(match.mechanism, "likely")}
    text = shown([answer])
    assert f"likely: {matching.name_of(match, either)}  the same mechanism: {match.mechanism}" in text
    assert all(f"{m.failure.name} if the run has {m.distinguished_by}" in text for m in (match, *either))
    assert match.failure.title not in text, "this model has no adapter"
    adapter = READY.replace("model.layers.1.mlp", "base_model.model.model.layers.1.mlp.down_proj.lora_B.default")
    match, either = known.recognised(ended(adapter))
    assert (match.failure.name, match.mechanism, either) == ("ddp_peft_reentrant_ready_twice", "", ())


def test_what_helps_the_mechanism_is_told_in_words_for_any_model():
    """Breaks when a model of text is told to change what its vision tower does, or a plain loop to start a trainer."""
    matches = raises(WAITS, facts=replace(FACTS, no_gradient=("experts.3.weight",)))
    [group] = findings.groups([matches])
    assert group.fates and not any(fate.in_trainers for fate in group.fates)
    text = shown([matches])
    assert "ddp_unused_vision_tower  the same mechanism: " in text and "every parameter always takes part" in text
    assert "tower and projector" not in text
    claims = view.as_json([matches])["problems"][0]["claims"]
    assert claims and not [claim for claim in claims if "tower and projector" in claim["claim"]]


def test_what_a_known_failure_needs_of_a_model_is_something_that_is_looked_for():
    """A misspelt fact would never be there, and its failure never be recognised."""
    known.check_facts(failures().values())
    failure = failures()["zero_double_reduction"]
    wrong = replace(failure.recognition, model=replace(failure.recognition.model, any_of=("sevral_calls",)))
    with pytest.raises(UsageError, match="no fact of a model is called sevral_calls"):
        known.check_facts([replace(failure, recognition=wrong)])


def test_failures_that_a_comparison_can_not_tell_apart_are_named_together_with_what_does():
    """Breaks when a guess is forced, when the same fault is told twice, or what the model is like decides before."""
    halved = {"signature": "differs", "shows": ("over_ranks",)}
    matches = [entry("diverges", name, **halved) for name in ("ddp", "zero2", "fsdp2")]
    [group] = findings.groups(matches)
    assert group.failure.name == "global_count_without_world_size" and len(group.forms[0].results) == 3
    assert [other.failure.name for other in group.either] == ["distillation_loss_over_ranks"]
    text = shown(matches)
    assert "distillation_loss_over_ranks if the run has a loss of TRL's" in text
    assert "divided by the number of ranks" in text
    twice = entry("diverges", "zero3-small/reentrant", facts=TWICE, **halved)
    assert known.recognised(twice)[0].failure.name != "zero_double_reduction"
    assert known.recognised(entry("diverges", signature="differs"))[0] is None


def test_what_ranks_show_beside_the_reference():
    """Breaks when another factor than the ranks', or one rank's alone, is taken for an average that is taken twice, or
    a wrapper that ran for one that didn't."""

    def seen(*factors, wrapper="DistributedDataParallel", entered=("DistributedDataParallel", "Module")):
        ends = [
            reports.end(
                steps=[{"factors": {"weights": factor} if factor else {}}],
                evidence={"wrapper": wrapper},
                facts={"model": "Model", "entered": list(entered)},
            )
            for factor in factors
        ]
        return checking.shows(Ended(ends))

    assert seen(0.5, 0.5) == seen(*[0.25] * 4) == seen(0.49, 0.5) == ["over_ranks"]
    for others in ((0.33, 0.33), (0.5, None), (None, None), (0.5, 1.0), (1.0,), (-0.5, -0.5), (2.0, 2.0)):
        assert seen(*others) == [], others
    assert seen(None, None, entered=("Inner", "Module")) == ["bypassed"]
    assert seen(None, None, entered=()) == [], "nothing ran"


CUT_OFF = replace(FACTS, checkpointing="reentrant", frozen_input=("bs.0",), no_gradient=("bs.0.w",))


def test_cells_that_agree_hide_nothing_that_one_process_does_already():
    """Breaks when a model of which half never trains is told to do what it should."""
    matches = [entry(where=name, facts=CUT_OFF) for name in ("ddp-find-unused", "fsdp2")]
    text = shown(matches)
    assert "bs.0: get no gradient: no input of a reentrant checkpoint requires a gradient" in text
    assert "✓ trains (unmoved)  " in text
    assert "likely: reentrant_frozen_embeddings_adapters" in text and "verified     `use_reentrant=False`" in text
    assert "But bs.0.w never move, not even in a single process." in view.verdict(matches)
    [problem] = view.as_json(matches)["problems"]
    assert problem["forms"][0]["outcome"] == "trains" and len(problem["forms"][0]["cells"]) == 2
    for other in ({"frozen_input": ()}, {"checkpointing": "off"}, {"no_gradient": ()}, {"no_gradient": ("bs.01.w",)}):
        quiet = [entry(where="fsdp2", facts=replace(CUT_OFF, **other))]
        assert not findings.groups(quiet) and "never move" not in view.verdict(quiet), other


def test_a_parameter_that_is_cut_off_is_not_called_unused():
    """Breaks when DDP's own advice, which only silences it, is told to be verified."""

    def named(facts):
        [group] = findings.groups([raises(WAITS, facts=facts)])
        names = [match.failure.name for match in (group.match, *group.either)]
        return names, {fate.claim.text: fate.word for fate in group.fates}

    unused, cut_off = "ddp_unused_vision_tower", "reentrant_frozen_embeddings_adapters"
    names, answer = named(CUT_OFF)
    assert names == [cut_off]
    assert answer["`find_unused_parameters=True`"] == "refuted" and answer["`use_reentrant=False`"] == "verified"
    names, answer = named(replace(CUT_OFF, no_gradient=("bs.0.w", "spare.w")))
    assert names == [unused, cut_off]
    assert answer["`find_unused_parameters=True`"] == "refuted", "against both, in reentrant checkpoints"
    assert answer[f"`use_reentrant=False`, against {cut_off}"] == "verified"
    assert answer[f"freeze the unused parameters (`requires_grad=False`), against {unused}"] == "verified"
    names, _ = named(replace(FACTS, frozen_input=("a",), no_gradient=("a.w",)))
    assert names == [unused], "no checkpoint was there"


def test_the_ranks_that_raised_are_told_where_not_all_did():
    """Breaks when somebody looks for a fault on rank 0 that is in rank 1's rows, or a peer's end is taken for it; or
    when a failure is recognised by the traceback of a rank that only lost its connection."""
    victim, failed = error("Connection closed by peer"), replace(error("no 1"), rank=1)
    for other in (RankResult(0), victim):
        result = entry("raises", ranks=(other, failed), rank=1)
        assert result.raised is failed and "  raised on rank 1 of 2\n" in shown([result])
    assert "raised on" not in shown([entry("raises", ranks=(error("no 2"), failed), rank=1)])
    assert entry("raises", rank=1, ranks=(victim, RankResult(1))).raised is victim
    assert entry(ranks=(RankResult(0),)).raised is None


def shown(results, target="train.py:build", options=()):
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115 - gone with the console
    view.show(console, target, options, results)
    return console.export_text()


def test_a_remedy_is_judged_by_the_models_own_cells_first():
    """Breaks when a setting is called refuted above a cell of the same table that trains with it."""
    unused, remedy = replace(FACTS, no_gradient=("spare",)), "ddp-find-unused"
    wrong = raises(WAITS, facts=unused)
    [group], [cell] = findings.groups([wrong]), remedies.untried([wrong])
    assert cell == replace(wrong.cell, strategy=remedy)
    for outcome, word, helped in (("trains", "verified", 1), ("raises", "refuted", 0)):
        other = entry(outcome, remedy, signature="other", facts=unused)
        assert not remedies.untried([wrong, other]), "what was run is not run again"
        [row] = [each.row for each in remedies.judge_remedies(group, [wrong, other]) if each.results]
        assert row[:2] == (word, "`find_unused_parameters=True`")
        assert row[2].startswith(f"your model under ddp-find-unused: {helped} of 1 cell; in the")
    assert not any(each.results for each in remedies.judge_remedies(group, [wrong, entry("impossible", remedy)]))
    both = [wrong, raises(WAITS, remedy, facts=unused)]
    [group] = findings.groups(both)
    [row] = [each.row for each in remedies.judge_remedies(group, both) if each.results]
    assert row[:2] == ("refuted", "`find_unused_parameters=True`"), "it goes wrong in the same way, and isn't counted"


def test_a_mode_that_a_model_sets_by_itself_is_no_remedy_that_was_tried():
    """Breaks when "no gradient checkpointing" is verified for somebody who can't ask for that from outside, or cells
    are announced to try remedies, and none of them can be run."""
    wrong = raises(REDUCED, "zero2", facts=replace(TWICE, checkpointing="reentrant"))
    [group] = findings.groups([wrong])
    rows = [each.row for each in remedies.judge_remedies(group, [wrong]) if "checkpointing" in each.fate.claim.swap]
    assert rows and all(row[2].endswith("your model checkpoints by itself: change that in it") for row in rows)
    asked = raises(REDUCED, "zero2/reentrant", facts=TWICE)
    others = [each.row[2] for each in remedies.judge_remedies(findings.groups([asked])[0], [asked])]
    assert not any("by itself" in text for text in others)
    assert "non-reentrant" in {each.checkpointing for each in remedies.untried([asked])}
    lacks = entry("impossible", "ddp/non-reentrant", detail="no such mode")
    assert "non-reentrant" not in {each.checkpointing for each in remedies.untried([asked, lacks])}


def test_what_is_silent_and_has_no_name_ends_with_where_to_go():
    """Breaks when somebody whose weights are wrong hears so, and nothing that they could do next."""
    wrong = entry("diverges", "zero2", signature="unmoved", detail="never moved: a")
    text = shown([wrong, entry(), entry(where="fsdp1-full")])
    assert "\n  agree with a single process: ddp, fsdp1-full\n" in text and "no attribute" not in text
    same = "ddp_unfreeze_after_wrap, zero2_gradient_order_differs, zero_unfreeze_after_initialize"
    assert f"\n  known to do the same there: {same}\n" in text
    assert "faultline show ddp_unfreeze_after_wrap\n" in text
    alone = shown([entry("diverges", name, signature="differs", detail="wrong") for name in ("zero2", "zero3")])
    assert "\n  none of the 2 strategies that ran agrees with a single process\n" in alone
    assert "known to do the same" not in alone, "twenty failures differ somewhere"


@pytest.mark.slow
@given(st.text())
@settings(max_examples=20)  # each is shown three times
def test_no_name_or_error_steers_the_terminal(text):
    """Names of modules and errors come from a user's file: they are data."""
    hostile = f"{text}\x1b[2J"
    facts = replace(FACTS, no_gradient=(hostile,), tied=((hostile, "b"),), not_fed=(hostile,))
    finding = Finding(first=Difference(1, 0, "backward", hostile, 0.5, hostile))
    errors = (Deviation(hostile, "gradients", 1, 0, 0.5),)
    wrong = entry("diverges", signature="differs", detail=hostile, finding=finding, errors=errors, apart=((hostile,),))
    never = entry("impossible", "fsdp2", detail=hostile)
    raised = entry("raises", "zero2", detail=hostile, raised_in=hostile)
    assert "\x1b" not in shown([wrong, never, raised])
    assert "\x1b" not in shown([of(wrong, facts)], hostile)
    json.dumps(view.as_json([of(wrong, facts)]))


def test_an_adapter_that_never_moves_is_the_first_thing_told():
    facts = replace(FACTS, no_gradient=("base.lora_A.weight",))
    assert "never move, not even in a single process" in model_facts.of_model(facts)[0]
    assert model_facts.of_model(FACTS) == []


def test_weights_that_modules_share_are_told_in_a_line():
    """Breaks when an answer drowns in the weights of a module that its model has under two names."""
    twice = [(f"a.0.{name}", f"b.{name}") for name in ("0.weight", "0.bias")]
    facts = replace(FACTS, tied=(*twice, ("emb.weight", "head.weight")))
    assert model_facts.of_model(facts) == ["a.0 = b: 2 weights of each are tied", "emb.weight = head.weight: tied"]


def test_what_is_not_proven_is_no_difference():
    """Breaks when a cell of which nobody knows which strategy ran counts as one that differs, or as one that agrees."""
    answer = view.verdict([entry(), entry("invalid")])
    assert answer == "1 invalid, as nothing proves which strategy and mode ran."


def test_why_a_cell_is_impossible_is_told_once():
    """Breaks when a user is left with a dash in a table, or reads one reason for each of thirty cells."""
    cells = [f"{name}/{mode}" for name in ("ddp", "zero2") for mode in ("off", "reentrant")]
    lacks = "the model has no gradient_checkpointing_enable"
    matches = [entry("impossible" if "reentrant" in cell else "trains", cell, detail=lacks) for cell in cells]
    alone = entry("impossible", "fsdp2", detail="no part of the model can be a unit")
    answer = [line for line in shown([*matches, alone]).splitlines() if "impossible  " in line and ": " in line]
    assert answer[-2:] == [
        f"– impossible  ddp, zero2 (reentrant): {lacks}",  # noqa: RUF001
        "– impossible  fsdp2 (off): no part of the model can be a unit",  # noqa: RUF001
    ]
    assert view.impossible([entry()]) == []
    raised = [oracle.Judgement(outcomes.Outcome.RAISES, "", f"ValueError: {words}") for words in checking.ON_GPUS]
    details = {checking.on_this_device(entry().cell, each).detail for each in raised}
    assert len(details) == 1 and "--device cuda" in details.pop(), "engines raise two errors for one cause"


def test_of_an_error_its_module_is_told_and_no_difference():
    """Breaks when what a rank had computed until its error is told as a difference in the model."""
    ends = Ended([reports.end(), reports.end(rank=1, facts={"model": "M", "inside": "a"})])
    inside = checking.raised_in(ends, oracle.Judgement(outcomes.Outcome.RAISES, "", "E: no", 1))
    answer = shown([entry("raises", detail="E: no", raised_in=inside)])
    assert "  raised in: a\n" in answer and "first differs" not in answer
    assert "raised in: the model itself\n" in shown([entry("raises", raised_in="")])
    assert "raised in" not in shown([entry("raises")]), "an error of the optimizer's is in no module"


def test_facts_are_those_of_the_most_ranks():
    """With one rank, no parameter is used by some ranks only."""
    alone = entry(world_size=1, facts=replace(FACTS, no_gradient=("a",)))
    both = entry(facts=replace(FACTS, unequal=("a",)))
    assert findings.facts_of([both, alone]).unequal == findings.facts_of([alone, both]).unequal == ("a",)
    facts = {"model": "M", "apart": [["embed.weight", "head.weight"]]}
    assert checking.untied_weights(Ended([reports.end(facts=facts)] * 2)) == (("embed.weight", "head.weight"),), (
        "each pair once"
    )


class Dying:
    """A rank server that never lives to answer."""

    killed, peers, deadline = False, (), 1.0
    versions: dict = {}  # noqa: RUF012 - as a server has it before it was ready

    def begin(self, job):
        raise ServerDied("the rank server ended: Killed")

    def abort(self, leaving): ...


def test_a_server_that_dies_before_anything_was_seen_is_an_invalid_cell(tmp_path):
    """Breaks when a check of an hour ends in a KeyError because the memory ran out twice at its start."""
    (tmp_path / "train.py").write_text("def build(): ...")
    checked = target.parse(f"{tmp_path}/train.py:build", "")
    matches = checking.run(checked, Dying(), runner.References(tmp_path), CELL)
    assert (matches.outcome, matches.signature) == ("invalid", "server")
    assert "the rank server ended: Killed" in shown([matches])
    assert view.as_json([matches])["model"] == {}
    assert findings.facts_of([matches, entry()]) == FACTS, "what another cell saw is lost"


def test_words_of_the_matrix_are_not_told_of_ones_own_model():
    """Nothing is expected of a model that nobody ran before: a cell is held against one process."""
    answer = shown([entry(), entry("diverges", signature="differs", verdict="unexpected failure")])
    assert "1 unlike a single process" in answer and "marks what is unlike a single process" in answer
    assert "expected" not in answer


def test_another_environment_is_told_and_asked_for_again():
    """Breaks when the command that is shown runs the model on other versions than those that failed, or another cell;
    its words go through a shell."""
    options = ["--stack", "trl==1.12.0 peft<0.19"]
    wrong = entry("diverges", signature="differs", stack={"peft": "0.18.1", "trl": "1.12.0"})
    answer = shown([wrong], options=options)
    assert "  on peft 0.18.1, trl 1.12.0\n" in answer
    assert "check train.py:build --stack 'trl==1.12.0 peft<0.19' --strategy ddp" in answer
    answer = view.command("my file.py:build", ["--lora", "r=8"], entry(where="zero2", precision="bf16", world_size=4))
    assert answer.removeprefix("bin/").startswith("faultline check 'my file.py:build' --lora r=8 --strategy zero2")
    assert answer.endswith("--checkpointing off --precision bf16 --world 4")


@pytest.fixture
def checked(asked, tmp_path, monkeypatch):
    """Ask for a check of a file, whose cells a function runs in the place of an engine."""
    file = tmp_path / "train.py"
    file.write_text("def build(): ...")
    monkeypatch.setattr(command.storage, "new_run", lambda kind: RunFolder(tmp_path))
    monkeypatch.setattr(command.storage, "latest_run", lambda kind: RunFolder(tmp_path))

    def checked(run_part, *words):
        monkeypatch.setattr(
            measurement, "run_batches", lambda batches, workers, engine, on_result: run_part(*batches, on_result)
        )
        return asked("check", f"{file}:build", *words)

    return checked


def test_a_check_runs_in_the_environment_that_is_asked_for(checked, monkeypatch):
    """Breaks when versions that somebody asked for are told and not used."""
    used = {}
    monkeypatch.setattr(command.environments, "ready", lambda stack: Environment(f"/made/for/{stack.name}", ""))

    def run_part(part, on_result):
        used[part.stack.python] = part.run
        for cell in part.cells:
            on_result(part, entry(where=f"{cell.strategy}/{cell.checkpointing}"))

    code, answer, errors = checked(run_part, "--stack", "trl==1.12.0", "--strategy", "ddp")
    assert code == 0, errors
    assert [*used] == ["/made/for/trl==1.12.0"]
    assert "All 3 configurations that can be run train like a single process" in answer


def test_the_command_tells_a_fault_from_a_mistake(checked):
    """Scripts go by the exit code: 1 is an answer, 2 is none. A mistake is one line, and no twelve kilobytes of torch's
    dispatcher."""

    def fail(*_):
        raise command.TargetFailed("Could not run 'aten::empty'. " + "CPU: registered at /build/CPU.cpp:30798\n" * 300)

    differs = checked(lambda part, give: give(part, entry("diverges")), "--strategy", "ddp", "--checkpointing", "off")
    assert differs[0] == 1
    code, answer, [*_, line] = checked(fail, "--json")
    assert code == 2 and not answer
    assert "Could not run 'aten::empty'. CPU: registered" in line and len(line) < 1100


def test_an_interrupted_check_goes_on_with_the_same_model_alone(checked, tmp_path):
    """Breaks when cells of another model, or of the file before it was changed, are taken for this model's."""
    ran = []

    def run_part(part, on_result):
        for cell in part.cells:
            if len(ran) == 1 and cell != ran[0]:
                ran.append(cell)
                raise KeyboardInterrupt
            ran.append(cell)
            on_result(part, entry(where=f"{cell.strategy}/{cell.checkpointing}"))

    code, _, errors = checked(run_part, "--strategy", "ddp")
    assert code == 130 and errors[-1].endswith("the same command with --resume goes on")
    code, answer, _ = checked(run_part, "--strategy", "ddp", "--resume")
    assert code == 0 and "All 3 configurations" in answer
    assert len(ran) == 4, "the first cell ran once, the second was interrupted and ran again"
    assert checked(run_part, "--strategy", "zero2", "--resume")[0] == 2, "other cells"
    assert checked(run_part, "--strategy", "ddp", "--checkpointing", "off", "--resume")[0] == 2, "fewer cells"
    of, info = storage.latest_run(kind="check"), storage.latest_run(kind="check").info()
    of.describe(stack="trl 0.1")
    code, _, [line] = checked(run_part, "--strategy", "ddp", "--resume")
    assert code == 2 and "another stack (trl 0.1)" in line
    of.describe(stack=info.stack)
    (tmp_path / "train.py").write_text("def build(): return 1")
    code, _, [line] = checked(run_part, "--strategy", "ddp", "--resume")
    assert code == 2 and "changed since" in line


GPU, ALONE = entry("impossible", detail="it needs a GPU"), entry(where="single")


@pytest.mark.parametrize(
    ("cells", "code", "said"),
    [
        ([ALONE], EXIT_UNDECIDED, "UNKNOWN: only a single process could be run. Ask for other strategies"),
        ([GPU], EXIT_UNDECIDED, "UNKNOWN: no cell could be run. What stands against the others"),
        ([ALONE, GPU], EXIT_UNDECIDED, "others: it needs a GPU."),
        ([entry("diverges", "single"), GPU], EXIT_UNEXPECTED, "1 of 2 configurations"),
        ([entry(where="zero2"), GPU], EXIT_AS_EXPECTED, "trains like a single process"),
    ],
)
def test_nothing_is_promised_of_strategies_that_were_not_run(monkeypatch, capsys, cells, code, said):
    """Breaks when a model that only ran in one process is told to train alike everywhere, with exit code 0."""
    result = CheckResult("train.py:build", (), tuple(cells))
    monkeypatch.setattr(command, "answer", lambda request: result)
    assert command.run(command.CheckRequest("train.py:build", Selection())) == code
    assert said in " ".join(capsys.readouterr().out.split())
    assert result.agrees is (code == EXIT_AS_EXPECTED)


@pytest.mark.parametrize(("others", "by"), [((), "batch_statistics"), (("codebook",), "buffers_apart")])
def test_what_mends_a_batchnorm_is_not_told_of_a_codebook_beside_it(others, by):
    facts = replace(FACTS, batch_statistics=("norm",), unlike_buffers=others)
    apart = Finding(apart=("norm.running_mean", *others))
    [group] = findings.groups([entry("diverges", "zero2", signature="buffers-apart", finding=apart, facts=facts)])
    assert group.match.by == by


def test_weights_that_may_be_wrong_because_of_buffers_are_told_beside_them():
    """Breaks when both are one problem, and only the buffers of it are shown."""
    checked = Checked(facts=FACTS, causes=(oracle.Cause("differs", "weights"), oracle.Cause("buffers-apart", "")))
    both = entry("diverges", "zero2", signature="buffers-apart", detail="weights; buffers", checked=checked)
    lines = next_steps.next_steps(findings.groups([both])[0], [both])
    assert any("for another reason" in line for line in lines)
    early = replace(both, signature="differs", finding=Finding(first=Difference(1, 0, "backward", "layer", 0.4)))
    [group] = findings.groups([early])
    assert "in the first step already" in " ".join(next_steps.several_causes(group))


@pytest.mark.parametrize(
    ("facts", "told"), [({"unequal": ("left",)}, False), ({"no_gradient": ("left.weight",)}, True)]
)
def test_what_other_rows_train_is_not_to_be_frozen(facts, told):
    """Breaks when experts that other ranks train are called unused parameters, to be frozen."""
    [group] = findings.groups([raises(WAITS, facts=replace(FACTS, **facts))])
    assert group.failure.name == "ddp_unused_vision_tower"
    assert any("freeze" in fate.claim.text for fate in group.fates) is told


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_a_package_that_is_broken_is_told_with_its_cause(tmp_path, error):
    """Breaks when "Could not import X" is all that somebody learns of a library that another one lacks."""
    try:
        try:
            raise OSError("libcudart.so.12: cannot open")
        except OSError as cause:
            raise error("Could not import X") from cause
    except error as raised:
        message, _ = checking.explained(error_report(raised), tmp_path)
    assert "Could not import X, because of OSError: libcudart.so.12" in message


def test_ranks_with_unlike_buffers_are_held_against_no_process():
    """Breaks when a BatchNorm whose gradients are those of one process is said to agree with neither process."""
    checked = Checked(beside=(Beside(variations.ROWS, "diverges", "differs", ""),))
    answers = {
        signature: variations.agrees_with_neither(entry("diverges", "zero2", signature=signature, checked=checked))
        for signature in ("buffers-apart", "differs")
    }
    assert not answers["buffers-apart"] and answers["differs"].startswith("agrees neither with the mean")
