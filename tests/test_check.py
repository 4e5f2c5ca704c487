"""`check`: what it takes for a target, what it says of a failed one, and where a run first differs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from faultline import check, diagnose, logs, matching, oracle, problems, runner, runs, score
from faultline.catalogue import ROOT, failures
from faultline.environments import Environment
from faultline.errors import UsageError
from faultline.matrix import Cell
from faultline.ranks import Ended, RankEnd, ServerDied
from faultline.report import checked
from faultline.results import RunFolder

FACTS = {
    "class": "Model",
    "parameters": 10,
    "trainable": 10,
    "noise": 0.0,
    "checkpointing": "off",
    **{key: [] for key in (*checked.FACTS, "tied", "not_fed", "cast")},
}


TWICE = {"facts": FACTS | {"several_calls": ["tower"]}}


def ended(*steps, facts=None):
    """Two ranks: the first did these steps, the second did nothing wrong."""
    fine = [{"bad": [], "nan": [], "outputs": {}} for _ in steps]
    whole = [{"bad": [], "nan": [], "outputs": {}} | step for step in steps]
    return Ended([RankEnd({"rank": n, "steps": s, "facts": facts or {}}) for n, s in enumerate((whole, fine))])


def entry(outcome="trains", cell="check/model/ddp/off/fp32/w2/cpu", **changes):
    _, variant, strategy, mode, precision, world, device = cell.split("/")
    axes = {"variant": variant, "strategy": strategy, "checkpointing": mode, "precision": precision, "device": device}
    rest = {
        "signature": "",
        "detail": "",
        "errors": [],
        "first": {},
        "raised_in": None,
        "apart": [],
        "shows": [],
        "ranks": [{"error": None}],
        "stack": "",
    }
    known = {"id": cell, "failure": "check", "world_size": int(world[1:]), "outcome": outcome, "verdict": "expected"}
    return {**axes, **known, **rest, "worst_parameter": "", "relative_error": None, "facts": FACTS, **changes}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nowhere.json", "nothing is downloaded"),
        ("Qwen/Qwen2-0.5B", "nothing is downloaded"),
        ("empty", "no config.json"),
        ("train.py", "name the function that builds the model, as {}/train.py:build"),
        ("broken.py:build", "broken.py:1: invalid syntax"),
        ("list.json", "neither"),
        ("binary.json", "neither"),
        ("config.json:build", "a config, which has no function"),
    ],
)
def test_what_is_no_target_is_refused_in_one_line(tmp_path, text, reason):
    """A wrong path would otherwise be found out after a rank server has started, by a traceback."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "train.py").write_text("def build():\n    return 1\n")
    (tmp_path / "broken.py").write_text("def build(:\n")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "binary.json").write_bytes(b"\xff\x00")
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(UsageError, match=reason.format(tmp_path)) as error:
        check.parse(f"{tmp_path}/{text}", "")
    assert "\n" not in str(error.value)


def test_a_folder_stands_for_its_config(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    assert check.parse(str(tmp_path), "") == check.parse(str(tmp_path / "config.json"), "")


def test_an_adapter_is_read_as_it_is_written():
    assert check.adapter("r=4,target=q_proj+v_proj,alpha=16,dropout=0.05") == {
        "r": 4,
        "lora_alpha": 16.0,
        "lora_dropout": 0.05,
        "target_modules": ["q_proj", "v_proj"],
    }
    assert check.adapter("target=all-linear")["target_modules"] == "all-linear"


@given(st.text())
def test_no_adapter_is_read_from_anything_else(text):
    """Whatever is typed ends in a LoRA config or in one line."""
    try:
        found = check.adapter(text)
    except UsageError as error:
        assert "--lora" in str(error) and "\n" not in str(error)  # noqa: PT017 - most texts are refused, not all
    else:
        assert not text or found["r"] >= 1


def test_a_message_of_several_lines_is_told_by_its_first(tmp_path):
    """Breaks when somebody offline is told to see a manual, and not that their script downloads a model."""
    problem = (
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in build\n    load()\n\n'
        "During handling of the above exception, another exception occurred:\n\n"
        'Traceback (most recent call last):\n  File "/home/me/train.py", line 3, in build\n    load()\n    ^^^^^^\n'
        "OSError: no connection\nSee the manual\n  about offline mode.\n"
    )
    assert check.told(problem, Path("/home/me"))[0] == "OSError: no connection"


TRACEBACK = f"""Traceback (most recent call last):
  File "{ROOT}/faultline/rank.py", line 35, in main
    _run(job, rank, report)
    ^^^^^^^^^^^^^^^^^^^^^^^
  File "/home/me/train.py", line 3, in build
    return helper(None)
  File "/home/me/train.py", line 7, in helper
    x.shape
"""


def test_a_user_sees_their_own_frames_only():
    """Frames of this suite in front of one's own hide what is wrong."""
    problem = TRACEBACK + "AttributeError: 'NoneType' object has no attribute 'shape'\n"
    message, traceback = check.told(problem, Path("/home/me"))
    assert message == "AttributeError: 'NoneType' object has no attribute 'shape'"
    assert "faultline/rank.py" not in traceback and "_run(job" not in traceback
    assert traceback.startswith("Traceback") and traceback.endswith("'shape'\n") and "/home/me/train.py" in traceback


def test_a_refusal_is_one_line_with_the_cause_alone():
    problem = (
        TRACEBACK
        + "SystemExit: 3\n\nThe above exception was the direct cause of the following exception:\n\n"
        + f'Traceback (most recent call last):\n  File "{ROOT}/faultline/targets.py", line 9, in _call\n    raise\n'
        + "faultline.targets.Refused: train.py exits (code 3)\n"
    )
    message, traceback = check.told(problem, Path("/home/me"))
    assert message == "train.py exits (code 3)"
    assert traceback.endswith("SystemExit: 3\n") and "above exception" not in traceback and "Refused" not in traceback


def test_of_a_script_that_starts_processes_its_own_line_is_the_last():
    """Breaks when the traceback ends in a library's frames, without an error."""
    library = (
        '  File "/home/me/.venv/lib/python3.11/site-packages/torch/multiprocessing/spawn.py", line 275, in spawn\n'
    )
    ours = f'  File "{ROOT}/faultline/targets.py", line 9, in start\n    raise Refused()\n'
    problem = f"{TRACEBACK}{library}    process.start()\n{ours}faultline.targets.Refused: the script starts processes\n"
    message, traceback = check.told(problem, Path("/home/me"))
    assert message == "the script starts processes" and traceback.endswith("    x.shape\n")
    raised = check.told(problem.replace("faultline.targets.Refused", "RuntimeError"), Path("/home/me"))[1]
    assert "process.start()" in raised and raised.endswith("RuntimeError: the script starts processes\n")


def test_a_module_that_is_missing_is_not_blamed_on_the_stack():
    """Breaks when somebody whose own helpers.py lies elsewhere is told to choose another release of torch."""
    problem = (
        TRACEBACK
        + "ModuleNotFoundError: No module named 'helpers'\n"
        + check.CAUSE
        + f'Traceback (most recent call last):\n  File "{ROOT}/faultline/scenario.py", line 9, in building\n    raise\n'
        + "faultline.scenario.Impossible: this stack lacks it: No module named 'helpers'\n"
    )
    message, traceback = check.told(problem, Path("/home/me"))
    assert message.startswith("No module named 'helpers': if that is a file of yours") and "--stack" in message
    assert "/home/me/train.py" in traceback
    library = "faultline.scenario.Impossible: this stack lacks it: cannot import name 'Gemma3' from 'transformers'\n"
    assert check.told(library, Path("/home/me"))[0].startswith("this stack lacks it: cannot import name 'Gemma3'")


def test_an_error_in_ones_own_code_is_told_with_its_lines():
    """Breaks when nine cells raise and nobody says at which line, or all nine tell the same lines."""
    trace = TRACEBACK + "ValueError: no\n"
    report = {"rank": 0, "steps": [], "error": {"traceback": trace}}
    raised = oracle.Judgement(oracle.Outcome.RAISES, "", "ValueError: no", 0)
    at = check.raised_at(Ended([RankEnd(report)]), raised, Path("/home/me"))
    assert at and all(place.startswith("train.py:") and " in " in place for place in at)
    cells = [f"check/model/{name}/off/fp32/w2/cpu" for name in ("zero2", "fsdp2")]
    told = shown([entry("raises", cell, detail=f"ValueError: {cell}", at=at) for cell in cells])
    assert told.count(at[-1]) == 1
    assert not check.raised_at(Ended([RankEnd(report)]), raised, Path("/home/you"))


def test_a_refusal_from_nowhere_has_no_traceback():
    ours = f'Traceback (most recent call last):\n  File "{ROOT}/faultline/targets.py", line 9, in f\n    raise\n'
    assert check.told(ours + "faultline.targets.Refused: no\n", ROOT) == ("no", "")
    died = "faultline.runner.Died: the process that builds and trains it left with exit code 5"
    assert check.told(died, ROOT) == ("the process that builds and trains it left with exit code 5", "")


ORDER = ["", "embed", "layers.0", "layers.1", "head"]


@pytest.mark.parametrize(
    ("steps", "phase", "module", "step"),
    [
        ([{"outputs": {"0 layers.1#1": 0.5, "0 head#1": 0.9}, "bad": ["gradients:head.w"]}], "forward", "layers.1", 1),
        ([{"bad": ["gradients:embed.w", "gradients:layers.1.w", "weights:layers.1.w"]}], "backward", "layers.1", 1),
        ([{"bad": ["weights:embed.w"]}], "update", "embed", 1),
        ([{}, {"nan": ["gradients:head.w"]}], "backward", "head", 2),
    ],
)
def test_the_first_difference_is_the_first_in_time(steps, phase, module, step):
    """Forward pass before backward pass, in which the last module comes first: a later one only follows."""
    found = check.first(ended(*steps), ORDER)
    assert (found["phase"], found["module"], found["step"], found["rank"]) == (phase, module, step, 0)


def test_where_nothing_differs_there_is_no_first_difference():
    assert check.first(ended({}, {}), ORDER) == {}


def test_weights_that_came_apart_are_named_once():
    apart = {"apart": [["embed.weight", "head.weight"]]}
    assert check.apart(ended({}, facts=apart)) == apart["apart"]


def test_a_known_failure_is_recognised_by_its_error_and_by_what_the_model_needs_for_it():
    """The words alone are shared with other mistakes: a model that runs no module twice has another fault."""
    words = "AssertionError: The parameter tower.weight has already been reduced."
    cell = "check/model/zero2/reentrant/fp32/w2/cpu"
    result = entry("raises", cell, detail=words, ranks=[{"error": {"traceback": words}}])
    assert problems.recognised(result | TWICE)[0].failure.name == "zero_double_reduction"
    assert problems.recognised(result)[0] is None


def test_words_that_only_a_remedy_leads_to_name_no_failure():
    """Breaks when a parameter that DDP waits for is called a failure of ZeRO-3's, with the remedies of that."""
    error = {"type": "RuntimeError", "message": "", "traceback": ""}
    words = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    result = entry("raises", "check/model/ddp/reentrant/fp32/w2/cpu", detail=words, ranks=[{"error": error}])
    assert problems.recognised(result)[0] is None
    unused = result | {"facts": FACTS | {"no_gradient": ["spare"]}}
    assert problems.recognised(unused)[0].failure.name == "ddp_unused_vision_tower"


def test_a_silent_failure_is_recognised_where_it_was_measured_and_the_model_has_what_it_needs():
    found = entry("diverges", "check/model/zero3-small/reentrant/fp32/w2/cpu", signature="differs")
    match, _ = problems.recognised(found | TWICE)
    assert (match.failure.name, match.signature, match.sure) == ("zero_double_reduction", "differs", "likely")
    elsewhere = entry("diverges", "check/model/zero3-small/non-reentrant/fp32/w2/cpu", signature="differs")
    assert problems.recognised(elsewhere | TWICE)[0] is None, "no cell was ever measured to diverge there"
    assert problems.recognised(found)[0] is None, "nothing in this model runs twice"


def test_one_failure_is_told_once_whatever_its_forms():
    """A user with nine failing cells of one cause needs one answer, with the remedies of all forms together."""
    words = {
        "zero2": "AssertionError: The parameter tower.w has already been reduced",
        "ddp": 'File "torch/utils/checkpoint.py"\nExpected to mark a variable ready only once',
    }
    found = [
        entry(
            "raises", f"check/model/{name}/reentrant/fp32/w2/cpu", detail=text, ranks=[{"error": {"traceback": text}}]
        )
        | TWICE
        for name, text in words.items()
    ]
    groups = problems.groups([*found, entry()])
    assert len(groups) == 1 and len(groups[0].forms) == 2
    fates = {fate.key: fate for fate in groups[0].fates}
    assert fates["a"].word == "verified" and fates["a"].cells == 2, "non-reentrant helps against both"
    assert [fate.word for fate in groups[0].fates] == sorted((f.word for f in fates.values()), key=problems.WORDS.index)


READY = (score.NEAR_MISSES / "made-full-fine-tune-that-looks-for-unused-parameters.log").read_text()


def test_both_commands_give_one_answer_to_one_error():
    """Breaks when a model without an adapter or a tower is told by `check` that it is LoRA, by `diagnose` a tower."""
    words = READY[READY.index("RuntimeError: ") :]
    cell = "check/model/ddp-find-unused/reentrant/fp32/w2/cpu"
    told = entry("raises", cell, detail=words, ranks=[{"error": {"traceback": READY}}])
    match, either = problems.recognised(told)
    other = diagnose.diagnose(lambda wanted: logs.lines("log", [READY.encode()], wanted))
    assert matching.name_of(match, either) == matching.name_of(other.match, other.either)
    assert match.mechanism == other.match.mechanism != "" and (match.sure, other.match.sure) == ("likely", "likely")
    text = shown([told])
    assert f"likely: {matching.name_of(match, either)}  the same mechanism: {match.mechanism}" in text
    assert all(f"{m.failure.name} if there is {m.told_by}" in text for m in (match, *either))
    assert match.failure.title not in text, "this model has no adapter"
    adapter = READY.replace("model.layers.1.mlp", "base_model.model.model.layers.1.mlp.down_proj.lora_B.default")
    told = entry("raises", cell, detail=adapter[len(READY) - len(words) :], ranks=[{"error": {"traceback": adapter}}])
    match, either = problems.recognised(told)
    assert (match.failure.name, match.mechanism, either) == ("ddp_peft_reentrant_ready_twice", "", ())


def test_what_helps_the_mechanism_is_told_in_words_for_any_model():
    """Breaks when a model of text is told to change what its vision tower does."""
    words = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    found = entry("raises", "check/model/ddp/off/fp32/w2/cpu", detail=words, ranks=[{"error": {"traceback": words}}])
    found |= {"facts": FACTS | {"no_gradient": ["experts.3.weight"]}}
    text = shown([found])
    assert "ddp_unused_vision_tower  the same mechanism: " in text and "every parameter always takes part" in text
    assert "tower and projector" not in text
    claims = checked.as_json([found])["problems"][0]["claims"]
    assert claims and not [claim for claim in claims if "tower and projector" in claim["claim"]]


def test_what_a_known_failure_needs_of_a_model_is_something_that_is_looked_for():
    """A misspelt fact would never be there, and its failure never be recognised."""
    looked_for = {*checked.FACTS, *problems.COMPARED}
    assert {fact for failure in failures().values() for fact in failure.found_by} <= looked_for


def test_failures_that_a_comparison_can_not_tell_apart_are_named_together_with_what_does():
    """Breaks when a guess is forced, when the same fault is told twice, or what the model is like decides before."""
    halved = {"signature": "differs", "shows": ["over_ranks"]}
    places = ("ddp", "zero2", "fsdp2")
    found = [entry("diverges", f"check/model/{name}/off/fp32/w2/cpu", **halved) for name in places]
    [group] = problems.groups(found)
    assert group.failure.name == "global_count_without_world_size" and len(group.forms[0].results) == 3
    assert [other.failure.name for other in group.either] == ["distillation_loss_over_ranks"]
    text = shown(found)
    assert (
        "distillation_loss_over_ranks if there is a loss of TRL's" in text and "divided by the number of ranks" in text
    )
    twice = entry("diverges", "check/model/zero3-small/reentrant/fp32/w2/cpu", **halved) | TWICE
    assert problems.recognised(twice)[0].failure.name != "zero_double_reduction"
    assert problems.recognised(entry("diverges", signature="differs"))[0] is None


def test_what_ranks_show_beside_the_reference():
    """Breaks when another factor than the ranks', or one rank's alone, is taken for an average that is taken twice, or
    a wrapper that ran for one that didn't."""

    def seen(*factors, wrapper="DistributedDataParallel", entered=("DistributedDataParallel", "Module")):
        ends = [
            RankEnd(
                {
                    "steps": [{"factor": factor} if factor else {}],
                    "evidence": {"wrapper": wrapper},
                    "facts": {"entered": list(entered)},
                }
            )
            for factor in factors
        ]
        return check.shows(Ended(ends))

    assert seen(0.5, 0.5) == seen(*[0.25] * 4) == seen(0.49, 0.5) == ["over_ranks"]
    for others in ((0.33, 0.33), (0.5, None), (None, None), (0.5, 1.0), (1.0,), (-0.5, -0.5), (2.0, 2.0)):
        assert seen(*others) == [], others
    assert seen(None, None, entered=("Inner", "Module")) == ["bypassed"]
    assert seen(None, None, entered=()) == [], "nothing ran"


CUT_OFF = FACTS | {"checkpointing": "reentrant", "frozen_input": ["bs.0"], "no_gradient": ["bs.0.w"]}
WAITS = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."


def test_cells_that_agree_hide_nothing_that_one_process_does_already():
    """Breaks when a model of which half never trains is told to do what it should."""
    places = ("ddp-find-unused", "fsdp2")
    found = [entry(cell=f"check/model/{name}/off/fp32/w2/cpu", facts=CUT_OFF) for name in places]
    text = shown(found)
    assert "bs.0: get no gradient: nothing that is given to a reentrant checkpoint requires a gradient" in text
    assert "✓ trains (unmoved)  " in text
    assert "likely: reentrant_frozen_embeddings_adapters" in text and "verified     `use_reentrant=False`" in text
    assert "In one process too, bs.0.w never move." in checked.verdict(found)
    [problem] = checked.as_json(found)["problems"]
    assert problem["forms"][0]["outcome"] == "trains" and len(problem["forms"][0]["cells"]) == 2
    for other in ({"frozen_input": []}, {"checkpointing": "off"}, {"no_gradient": []}, {"no_gradient": ["bs.01.w"]}):
        quiet = [entry(cell="check/model/fsdp2/off/fp32/w2/cpu", facts=CUT_OFF | other)]
        assert not problems.groups(quiet) and "never move" not in checked.verdict(quiet), other


def test_a_parameter_that_is_cut_off_is_not_called_unused():
    """Breaks when DDP's own advice, which only silences it, is told to be verified."""
    found = entry("raises", detail=WAITS, ranks=[{"error": {"traceback": WAITS}}])
    [group] = problems.groups([found | {"facts": CUT_OFF}])
    assert (group.failure.name, group.either) == ("reentrant_frozen_embeddings_adapters", ())
    told = {fate.claim.text: fate.word for fate in group.fates}
    assert told["`find_unused_parameters=True`"] == "refuted" and told["`use_reentrant=False`"] == "verified"
    [group] = problems.groups([found | {"facts": CUT_OFF | {"no_gradient": ["bs.0.w", "spare.w"]}}])
    assert [match.failure.name for match in group.either] == ["reentrant_frozen_embeddings_adapters"]
    assert {"`use_reentrant=False`, against reentrant_frozen_embeddings_adapters"} < {f.claim.text for f in group.fates}
    [group] = problems.groups([found | {"facts": FACTS | {"frozen_input": ["a"], "no_gradient": ["a.w"]}}])
    assert (group.failure.name, group.either) == ("ddp_unused_vision_tower", ()), "no checkpoint was there"


def test_the_ranks_that_raised_are_told_where_not_all_did():
    """Breaks when somebody looks for a fault on rank 0 that is in rank 1's rows, or a peer's end is taken for it."""
    own = {"type": "ValueError", "message": "no 1", "traceback": ""}
    alike, peer = own | {"message": "no 2"}, {"type": "RuntimeError", "message": "Connection closed by peer"}
    for other in (None, peer):
        ranks = [{"error": other}, {"error": own}]
        assert "  raised on rank 1 of 2\n" in shown([entry("raises", ranks=ranks, rank=1)])
    ranks = [{"error": alike}, {"error": own}]
    assert "raised on" not in shown([entry("raises", ranks=ranks, rank=1)])


def shown(results, target="train.py:build", options=()):
    console = Console(record=True, width=200, file=open("/dev/null", "w"))  # noqa: SIM115 - gone with the console
    checked.show(console, target, options, results)
    return console.export_text()


@given(st.text())
def test_no_name_or_error_steers_the_terminal(text):
    """Names of modules and errors come from a user's file: they are data."""
    hostile = f"{text}\x1b[2J"
    facts = FACTS | {"no_gradient": [hostile], "tied": [[hostile, "b"]], "not_fed": [hostile]}
    first = {"step": 1, "rank": 0, "phase": "backward", "module": hostile, "parameter": hostile, "error": 0.5}
    errors = [[hostile, "gradients", 1, 0, 0.5]]
    wrong = entry("diverges", signature="differs", detail=hostile, first=first, errors=errors, apart=[[hostile]])
    never = entry("impossible", "check/model/fsdp2/off/fp32/w2/cpu", detail=hostile)
    raised = entry("raises", "check/model/zero2/off/fp32/w2/cpu", detail=hostile, raised_in=hostile)
    assert "\x1b" not in shown([wrong, never, raised])
    assert "\x1b" not in shown([wrong | {"facts": facts}], hostile)
    json.dumps(checked.as_json([wrong | {"facts": facts}]))


def test_an_adapter_that_never_moves_is_the_first_thing_told():
    facts = FACTS | {"no_gradient": ["base.lora_A.weight"]}
    assert "never move, not even in one process" in checked.remarks(facts)[0]
    assert checked.remarks(FACTS) == []


def test_nothing_that_ran_is_no_agreement():
    """Breaks when a selection in which no cell can be run is told as a model without faults."""
    impossible = entry("impossible", detail="the model has no gradient_checkpointing_enable")
    assert not problems.agrees([impossible]) and not problems.ran([impossible])
    assert checked.verdict([impossible]) == "No cell could be run: the model has no gradient_checkpointing_enable."
    assert problems.agrees([impossible, entry()])


def test_why_a_cell_is_impossible_is_told_once():
    """Breaks when a user is left with a dash in a table, or reads one reason for each of thirty cells."""
    cells = [f"check/model/{name}/{mode}/fp32/w2/cpu" for name in ("ddp", "zero2") for mode in ("off", "reentrant")]
    lacks = "the model has no gradient_checkpointing_enable"
    found = [entry("impossible" if "reentrant" in cell else "trains", cell, detail=lacks) for cell in cells]
    alone = entry("impossible", "check/model/fsdp2/off/fp32/w2/cpu", detail="no part of the model can be a unit")
    told = [line for line in shown([*found, alone]).splitlines() if "impossible  " in line and ": " in line]
    assert told[-2:] == [
        f"– impossible  ddp, zero2 (reentrant): {lacks}",  # noqa: RUF001
        "– impossible  fsdp2 (off): no part of the model can be a unit",  # noqa: RUF001
    ]
    assert checked.impossible([entry()]) == []


def test_of_an_error_its_module_is_told_and_no_difference():
    """Breaks when what a rank had computed until its error is told as a difference in the model."""
    report = {"rank": 1, "steps": [{"bad": ["gradients:a.w"], "nan": [], "outputs": {}}], "facts": {"inside": "a"}}
    died = Ended([RankEnd(report | {"rank": 0, "facts": {}}), RankEnd(report)])
    raised = oracle.Judgement(oracle.Outcome.RAISES, "", "E: no", 1)
    assert check.raised_in(died, raised) == "a"
    told = shown([entry("raises", detail="E: no", raised_in=check.raised_in(died, raised))])
    assert "  arises in: a\n" in told and "first differs" not in told
    assert "arises in: the model itself\n" in shown([entry("raises", raised_in="")])
    assert "arises in" not in shown([entry("raises")]), "an error of the optimizer's is in no module"


def test_what_could_not_be_proven_is_not_told_as_a_difference():
    told = checked.verdict([entry(), entry("invalid")])
    assert told == "1 could not be proven to run what their names say."


def test_the_command_repeats_the_very_cell():
    """Whatever a target is called: the words go through a shell."""
    told = checked.command("my file.py:build", ["--lora", "r=8"], entry(cell="check/model/zero2/off/bf16/w4/cpu"))
    assert told.startswith("python -m faultline check 'my file.py:build' --lora r=8 --strategy zero2")
    assert told.endswith("--checkpointing off --precision bf16 --world 4")


def test_facts_are_those_of_the_most_ranks():
    """With one rank, no parameter is used by some ranks only."""
    alone = entry(cell="check/model/ddp/off/fp32/w1/cpu", facts=FACTS | {"no_gradient": ["a"]})
    both = entry(facts=FACTS | {"unequal": ["a"]})
    assert problems.facts_of([both, alone])["unequal"] == problems.facts_of([alone, both])["unequal"] == ["a"]


class Dying:
    """A rank server that never lives to answer."""

    killed = False
    greeting: dict = {}  # noqa: RUF012 - as a server has it before it was ready

    def run(self, job, world_size):
        raise ServerDied("the rank server ended: Killed")


def test_a_server_that_dies_before_anything_was_seen_is_an_invalid_cell(tmp_path):
    """Breaks when a check of an hour ends in a KeyError because the memory ran out twice at its start."""
    (tmp_path / "train.py").write_text("")
    target = check.parse(f"{tmp_path}/train.py:build", "")
    found = check.run_one(target, Dying(), runner.References(tmp_path), Cell.parse("check/model/ddp/off/fp32/w2/cpu"))
    assert (found["outcome"], found["signature"]) == ("invalid", "server")
    assert "the rank server ended: Killed" in shown([found])
    assert checked.as_json([found])["model"] == {}
    assert problems.facts_of([found, entry()]) == FACTS, "what another cell saw is lost"


def test_words_of_the_matrix_are_not_told_of_ones_own_model():
    """Nothing is expected of a model that nobody ran before: a cell is held against one process."""
    told = shown([entry(), entry("diverges", signature="differs", verdict="unexpected failure")])
    assert "1 not as in one process" in told and "marks what is not as in one process" in told
    assert "expected" not in told


def test_another_environment_is_told_and_asked_for_again():
    """Breaks when the command that is shown runs the model on other versions than those that failed."""
    options = ["--stack", "trl==1.12.0 peft<0.19"]
    wrong = entry("diverges", signature="differs", stack="peft 0.18.1, trl 1.12.0")
    told = shown([wrong], options=options)
    assert "  on peft 0.18.1, trl 1.12.0\n" in told
    assert "check train.py:build --stack 'trl==1.12.0 peft<0.19' --strategy ddp" in told


def test_a_stack_and_an_interpreter_exclude_each_other(asked, tmp_path):
    (tmp_path / "train.py").write_text("def build(): ...")
    code, _, errors = asked("check", f"{tmp_path}/train.py:build", "--stack", "trl==1.12.0", "--python", "python3")
    assert code == 2 and len(errors) == 1 and "not allowed with" in errors[0]


def test_a_check_runs_in_the_environment_that_is_asked_for(asked, tmp_path, monkeypatch):
    """Breaks when versions that somebody asked for are told and not used."""
    (tmp_path / "train.py").write_text("def build(): ...")
    used = {}
    monkeypatch.setattr(check.results, "new_run", lambda kind: RunFolder(tmp_path))
    monkeypatch.setattr(check.environments, "ready", lambda stack: Environment(f"/made/for/{stack.name}", ""))

    def run_all(cells, workers, done, python, run):
        used[python] = run
        for cell in cells:
            done(entry(cell=cell.id, compared=[], evidence={}, expected={}, rounding={}, seconds=1, stack=""))

    monkeypatch.setattr(runs.runner, "run_all", run_all)
    code, told, errors = asked("check", f"{tmp_path}/train.py:build", "--stack", "trl==1.12.0", "--strategy", "ddp")
    assert code == 0, errors
    assert [*used] == ["/made/for/trl==1.12.0"]
    assert "All 3 cells that can be run do what one process does" in told
