"""Audits: a failure is listed where nothing known excludes it, and not where something does."""

import json
import re
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from faultline import strategies
from faultline.audit import arguments, conditions
from faultline.audit.arguments import trainers
from faultline.audit.contents import Content
from faultline.audit.engines import OTHER_TRAINER
from faultline.audit.evidence import evidence
from faultline.audit.open_conditions import deciding
from faultline.audit.project import Project, put_together
from faultline.audit.view import undecided as undecided_text
from faultline.base import packages, paths
from faultline.base.axes import CHECKPOINTING, PRECISIONS
from faultline.catalogue import loading
from faultline.catalogue.loading import needs
from faultline.cells.cell import Cell
from faultline.cli.app import app
from faultline.observations import answers, history, measured, ranges, store
from faultline.observations.store import MeasuredStack, Row
from faultline.projects import installed, versions
from faultline.projects.documents import Document, Place
from faultline.stacks import requests
from tests.support.night import sampled
from tests.support.projects import GRPO, pins, put, written

UNCACHED, RELEASES = history.observations_of.__wrapped__, history._releases.__wrapped__
OLDEST = measured.oldest.__wrapped__  # nothing made up stays for other tests
PAGE = (paths.ROOT / "docs" / "audit.md").read_text(encoding="utf-8")
FAILURES = loading.failures()
TWICE, NO_GRAD, OVER_RANKS = "zero_double_reduction", "grpo_lora_no_grad", "distillation_loss_over_ranks"
BY_DEFAULT = "average_tokens_across_devices"  # is on with today's releases where no file says otherwise
TODAY = {name: ranges.exactly(version) for name, version in measured.pinned().items()}


def changed(**changes):
    """The files of the project with the failure, some with other texts, by the file's name without its ending."""
    return {name: changes.get(name.partition(".")[0], text) for name, text in GRPO.items()}


def setup(versions=None, **left):
    """What is known, as values with spaces between them."""
    axes = {axis: frozenset(values.split()) for axis, values in left.items()}
    asked = {name: ranges.parse(text) for name, text in (versions or {}).items()}
    return Project(axes, asked, {key: (Place("x", 1, key),) for key in (*axes, *asked)})


def names(of):
    return {finding.failure.name for finding in conditions.findings(of)}


def cases(of, name):
    match = conditions.finding(FAILURES[name], of)
    return [*match.cases] if match else []


def test_a_project_that_has_a_failure_is_told_so(tmp_path, asked):
    """Breaks when the record's own setting, in files as people have them, isn't the surest answer, or isn't answered as
    docs/audit.md shows."""
    code, out, errors = asked("audit", put(tmp_path, GRPO))
    assert code == 1 and not errors
    parts = ("1 certain match", NO_GRAD, f"1 of {len(FAILURES)} failures certain")
    assert [*parts] == sorted(parts, key=out.index)
    text, shown = " ".join(out.split()), PAGE.split("\n...\n")[1].split("\n  ...\n")[0]
    assert "trl: ==0.15.2" in shown and "".join(shown.split()) in "".join(out.split())
    assert "how to check check after one forward pass" in text and "misses it check the trainable" in text
    [repeat] = re.findall(r"--cell (grpo\S+) --stack '(.*)'", out)
    assert Cell.parse(repeat[0]).variant == "grpo-broken" and repeat[1] == "trl-0.15.2"


CLEAN = {
    "requirements": pins(),
    "accelerate": "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n"
    "  fsdp_reshard_after_forward: true\nmixed_precision: bf16\n",
    "grpo": "output_dir: out\nmax_steps: 9\ndataset_text_field: text\ncompletion_only_loss: true\nuse_peft: false\n"
    "trainer: sft\ngradient_checkpointing: true\n",
}


def test_with_which_torch_all_was_measured_is_said(tmp_path, asked):
    """Breaks when a torch that stacks were run with is said to be none, or one that nobody ran to be measured."""
    for torch, words in (("2.11.0", "only torch-2.11.0 had torch==2.11.0"), ("2.5.0", "none had torch==2.5.0")):
        _, out, _ = asked("audit", put(tmp_path, {"requirements.txt": f"torch=={torch}\ntrl==1.16.0\n"}))
        assert words in " ".join(out.split())


def test_a_clean_current_project_passes(tmp_path, asked):
    """Breaks when a project fails its audit for what only its code could have, or reads pages of it."""
    files = put(tmp_path, changed(**CLEAN))
    code, out, _ = asked("audit", files)
    assert code == 0 and "measured" not in out and "holds" not in out
    assert re.search(r"^0 of \d+ failures certain, \d+ undecided: .*--all", out.splitlines()[-1])
    code, out, _ = asked("audit", files, "--all")
    assert code == 0 and "zero3_dummy_loss" in out and "requires_grad_(True)" in out
    undecided = int(re.search(r"(\d+) undecided", out)[1])
    assert "measured" not in out and len(out.splitlines()) < 2 * undecided + 20, "it takes more than two lines for each"
    code, out, _ = asked("audit", files, "--failure", "zero3_dummy_loss")
    assert code == 0 and "measured" in out and "reproduce" in out and "rank0_only_save" not in out
    code, out, _ = asked("audit", files, "--failure", "ddp_unused_vision_tower")
    assert code == 0 and "ddp_unused_vision_tower: excluded by what the files state" in out
    code, out, _ = asked("audit", files, "--json")
    assert code == 0 and not any(finding["applies"] for finding in json.loads(out)["findings"])


def test_what_is_installed_alone_fails_nobody(asked):
    """Breaks when an environment, of which nothing else is known, has every failure at length."""
    code, out, _ = asked("audit", "--env")
    assert code == 0 and len(out.splitlines()) < 60
    results = put_together([Content(pins=installed.environment(Path(sys.prefix), "installed"))]).versions
    here, today = ({name: asked.pinned for name, asked in each.items()} for each in (results, TODAY))
    assert here == today, "what is installed is not read as what requirements.txt pins"


def test_a_mode_in_which_nothing_was_run_says_nothing(tmp_path, asked):
    """Breaks when a failure that checkpointing has no part in is left out as soon as it is on."""
    for mode in CHECKPOINTING:
        held = setup(strategy="zero2", checkpointing=mode)
        assert {"custom_loss_ignores_num_items", "rank0_only_save", "ref_model_reloaded_from_path"} <= names(held)
    assert NO_GRAD not in names(setup(strategy="zero2", checkpointing="non-reentrant")), "that was run"


OWN_SETTING = {"checkpointing": "reentrant", "trainer": "grpo", "adapter": "yes"}
FROZEN = "zero3_nonreentrant_frozen_checkpointerror"  # as today's TRL makes this setting reentrant, it can't have it
FROZEN_SETTING = {"strategy": "zero3", "checkpointing": "non-reentrant", "trainer": "sft", "adapter": "yes"}
SHARDED = "fsdp_sharded_save_model_writes_nothing"
SHARDED_SETTING = {"trainer": "sft", "strategy": "fsdp1-full", "precision": "bf16", "sharded state dict": "yes"}
TODAYS = {name: f"=={version}" for name, version in measured.pinned().items()}


@pytest.mark.parametrize(
    ("failure", "versions", "left", "word"),
    [
        (NO_GRAD, {}, {"strategy": "zero2", **OWN_SETTING}, "likely"),  # nobody pins TRL
        (NO_GRAD, {}, {}, "possible"),
        (NO_GRAD, {"trl": "==0.15.2"}, OWN_SETTING, "likely"),  # one process fails too
        ("zero2_ga_wrong_gradient", {"deepspeed": "==0.18.0"}, {"accumulation": "yes"}, "possible"),
        (FROZEN, {}, FROZEN_SETTING, "likely"),
        (FROZEN, {"deepspeed": "==0.16.5", "trl": "==0.16.0"}, FROZEN_SETTING, "certain"),
        (FROZEN, TODAYS, FROZEN_SETTING, None),
        (SHARDED, {}, SHARDED_SETTING, "likely"),
        (SHARDED, {"transformers": "==5.16.1"}, SHARDED_SETTING, "certain"),
        (SHARDED, {"transformers": "==4.56.0"}, SHARDED_SETTING, None),
    ],
)
def test_how_sure_an_answer_is(failure, versions, left, word):
    """Breaks when a project that states more than another has the weaker verdict, or a CPU's crash refutes a remedy."""
    finding = conditions.finding(FAILURES[failure], setup(versions, **left))
    assert (finding and finding.word) == word
    fates = evidence(finding.failure, finding.cases[0], {}).remedies if finding else ()
    assert not any("SIGSEGV" in each for fate in fates for each in fate.against)
    if left == OWN_SETTING:
        assert [each.about for each in finding.cases[0].open] == [("strategy",)]


@pytest.mark.parametrize("trainer", [{}, {"trainer": f"grpo {OTHER_TRAINER}"}, {"trainer": "sft grpo"}])
def test_what_hangs_on_the_code_or_the_trainer_is_never_likely(trainer):
    """Breaks when the less a project states, the surer its answer."""
    of = setup(strategy="zero2", checkpointing="reentrant", adapter="yes", **trainer)
    for finding in conditions.findings(of):
        case = finding.cases[0]
        about = [each.about for each in case.open]
        assert finding.word != "likely" or not (() in about or ("trainer",) in about), finding.failure.name
        assert finding.applies == case.applies, "the surest case isn't the first"


@pytest.mark.parametrize("strategies", ["zero2 zero2-small", "ddp ddp-find-unused ddp-static-graph"])
def test_nothing_is_certain_of_a_script_as_the_tutorials_have_it(strategies):
    """Breaks when a failure that takes a loss or a model of one's own is certain where a script has neither."""
    none = dict.fromkeys(("reference model", "own max_grad_norm", "no gradient_clipping"), "no")
    script = setup(strategy=strategies, checkpointing="reentrant", trainer="sft", adapter="yes", **none)
    known = Project(script.left, TODAY)
    assert not [finding.failure.name for finding in conditions.findings(known) if finding.certain]


@pytest.mark.parametrize(
    ("failure", "strategy", "needed"),
    [
        ("fsdp_sharded_save_model_writes_nothing", "fsdp1-full", ("sharded state dict",)),
        ("deepspeed_gradient_clipping_omitted", "zero3", ("no gradient_clipping", "own max_grad_norm")),
    ],
)
@pytest.mark.parametrize("trainer", ["sft", "dpo", "grpo", OTHER_TRAINER])
def test_what_goes_wrong_below_a_trainer_is_told_to_all(failure, strategy, needed, trainer):
    """Breaks when who trains with another trainer than it was measured in isn't told, or is told as if it were that."""
    values = {"strategy": strategy, "trainer": trainer, **dict.fromkeys(needed, "yes")}
    of = Project({axis: frozenset([value]) for axis, value in values.items()}, TODAY)
    matching = [c for c in cases(of, failure) if c.variants[0].name == "sft-broken"]
    assert matching and all(("trainer" in case.holds) == (trainer == "sft") for case in matching)
    like = {"sft": "", OTHER_TRAINER: "TRL's sft, or another"}
    begins = like.get(trainer, "one that behaves like TRL's sft (the failure")
    assert all(answer_to(case).startswith(begins) and case.applies == (not case.asks) for case in matching)
    assert not [c for c in cases(of, NO_GRAD) if trainer == "sft"], "that is TRL's own"


@pytest.mark.parametrize(("release", "asked"), [("==4.49.0", True), ("==4.54.0", False), (">=4.49", False)])
def test_a_setting_is_there_by_default_only_since_its_release(release, asked, monkeypatch):
    """Breaks when somebody whose transformers leaves a setting off by default is told that it applies."""
    # As if no run had shown yet that it isn't there with these releases.
    monkeypatch.setattr(history, "observations_of", lambda *of: [run for run in UNCACHED(*of) if run.stack == "today"])
    of = setup({"transformers": release}, strategy="ddp", trainer="gkd")
    relevant = [c for c in cases(of, OVER_RANKS) if (BY_DEFAULT,) in [condition.about for condition in c.open]]
    assert relevant and all(case.asks == asked and "since transformers 4.54" in answer_to(case) for case in relevant)


def answer_to(case):
    return "; ".join(wanted_in(case))


def wanted_in(case):
    return [conditions.wanted_text(case, condition) for condition in case.open]


def test_what_no_cell_showed_is_said_in_words(tmp_path, asked, monkeypatch):
    """Breaks when a line begins with nothing: `measured : none of 2 cells today`."""
    monkeypatch.setattr(history, "observations_of", lambda *of: [replace(each, did=None) for each in UNCACHED(*of)])
    monkeypatch.setattr(history, "shows", lambda *_: False)
    _, out, _ = asked("audit", put(tmp_path, GRPO), "--all")
    assert not re.search(r"measured +:", out)


def test_the_table_of_keys_is_the_answers(tmp_path, asked):
    """Breaks when whoever reads the JSON is misled."""
    code, out, _ = asked("audit", put(tmp_path, GRPO), "--json")
    answer = json.loads(out)
    assert code == 1
    keys = {*answer, *answer["findings"][0], *answer["findings"][0]["cases"][0]}
    table = PAGE.split("\n## JSON\n")[1].split("\n## ")[0]
    assert keys <= set(re.findall(r"`(\w+)`", table))
    best = answer["findings"][0]
    assert best["certain"] and best["failure"] == NO_GRAD and not best["cases"][0]["open"]
    places = ["grpo.yaml:5 gradient_checkpointing: true", "grpo.yaml:7 use_reentrant: true"]
    assert best["cases"][0]["holds"]["checkpointing"] == places


AXES = {
    "strategy": strategies.names(),
    "checkpointing": CHECKPOINTING,
    "precision": PRECISIONS,
    "trainer": sorted(trainers()),
    **dict.fromkeys(needs(), ("yes", "no")),
}
VERSIONS = {name: sorted({stack.versions[name] for stack in measured.months()}) for name in measured.pinned()}
OPERATORS = st.sampled_from(["==", ">=", "<", "<=", "~="])
LEFT = {axis: st.frozensets(st.sampled_from(values), min_size=1) for axis, values in AXES.items()}
ASKED = {
    name: st.builds("{}{}".format, OPERATORS, st.sampled_from(released)).map(ranges.parse)
    for name, released in VERSIONS.items()
}
SETUPS = st.builds(Project, st.fixed_dictionaries({}, optional=LEFT), st.fixed_dictionaries({}, optional=ASKED))


@pytest.mark.slow
@pytest.mark.parametrize("part", sampled(range(5), 5))
@settings(max_examples=6)
@given(full=SETUPS, data=st.data())
def test_knowing_less_never_removes_a_failure(part, full, data):
    """Breaks when something that no file says excludes a failure, or when being told more adds one."""
    keep = data.draw(st.frozensets(st.sampled_from([*AXES, *VERSIONS])))
    less = replace(
        full,
        left={axis: values for axis, values in full.left.items() if axis in keep},
        versions={name: asked for name, asked in full.versions.items() if name in keep},
    )
    assert names(full) <= names(less)


@pytest.mark.slow
@pytest.mark.parametrize("part", sampled(range(5), 5))
@settings(max_examples=6)
@given(full=SETUPS, name=st.sampled_from([*FAILURES]))
def test_a_contradicted_condition_always_removes_a_failure(part, full, name):
    """Breaks when a failure is told although one of its conditions is known not to hold, whatever else is known."""
    failure = FAILURES[name]
    needs = {need for v in failure.variants if v.broken for need in v.needs}
    for need in needs:
        if all(need in v.needs for v in failure.variants if v.broken):
            assert name not in names(replace(full, left={**full.left, need: frozenset(["no"])}))
    if all(v.trainer and not v.any_trainer for v in failure.variants if v.broken):
        assert name not in names(replace(full, left={**full.left, "trainer": frozenset([OTHER_TRAINER])}))
    ever = {
        cell.strategy
        for cell in measured.outcomes(failure)
        if any(s.shows for s in history.observations_of(failure, cell))
    }
    never = set(strategies.names()) - ever
    others = replace(full, left={**full.left, "strategy": frozenset(never)})
    others = replace(others, versions=TODAY)
    assert name not in names(others)


ALONE = [
    *({"rlhf_type": each} for each in ("dpo", "kto", "gkd", "rloo", "grpo")),
    {"num_generations": 8},
    {"use_peft": True},
    {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": '{"use_reentrant": true}'},
    {"gradient_accumulation_steps": 2},
    {"max_grad_norm": 0.5},
    {"bf16": True},
    {"bf16": False, "fp16": False},
]
FSDP_2 = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}
ENGINES = [FSDP_2, {"distributed_type": "MULTI_GPU"}, {"zero_optimization": {"stage": 3}}]


@pytest.mark.parametrize("tables", [[each] for each in ALONE[:6]] + [[each, FSDP_2] for each in ALONE[:6]], ids=str)
def test_a_line_is_no_certain_alarm(tables):
    """Breaks when `num_generations: 8` alone has a failure, or FSDP2 with the release that fixes one."""
    contents = [Content(*(arguments.read(Document("x", Path("x"), "", table)))) for table in tables]
    fixing = Content(pins=versions.read(Document("r", Path("r"), "accelerate==1.15.0\n")))
    assert not any(finding.certain for finding in conditions.findings(put_together([*contents, fixing])))
    assert not any(finding.applies for finding in conditions.findings(Project())), "nothing is known"


@pytest.mark.slow
@pytest.mark.parametrize("part", sampled(range(5), 5))
@settings(max_examples=6)
@given(st.lists(st.sampled_from(ALONE), max_size=5), st.lists(st.sampled_from(ENGINES), max_size=1), SETUPS)
def test_what_is_listed_was_measured_and_what_applies_has_conditions_that_hold(part, tables, engine, known):
    """Breaks when a failure is listed for cells that never showed it, or an alarm has no condition that holds.

    And when it is listed for places that are excluded, or for values that nobody decided.
    """
    table = {"output_dir": "x", **{key: value for each in tables for key, value in each.items()}}
    contents = [Content(*(arguments.read(Document("x", Path("x"), "", each)))) for each in (table, *engine)]
    for of in (replace(put_together(contents), versions=known.versions), known):
        for finding in conditions.findings(of):
            assert not finding.applies or any(case.applies and case.holds for case in finding.cases)
            for case in finding.cases:
                if of is known:
                    was_measured(finding.failure, case, of)
                assert case.open or case.holds
                assert all(each in of.left or each in of.versions for each in case.holds)
                about = {name for each in case.open for name in each.about}
                for axis in ("strategy", "checkpointing", "precision"):
                    assert axis in about or not undecided(axis, finding.failure, case, of), (finding.failure.name, axis)


def was_measured(failure, case, of):
    """Assert that a case's cells showed the failure on some stack, in places that the project leaves."""
    assert set(case.shown) <= set(case.among)
    for cell in case.shown:
        assert cell.strategy in of.left.get("strategy", (cell.strategy,))
        among = [each for each in measured.outcomes(failure) if each.variant == cell.variant]
        modes = {each.checkpointing for each in among}
        assert modes == {"off"} or cell.checkpointing in of.left.get("checkpointing", modes)
    assert {cell.variant for cell in case.shown} == {variant.name for variant in case.variants}
    shown = evidence(failure, case, of.versions)
    elsewhere = any(s.shows for cell in case.shown for s in history.observations_of(failure, cell))
    answer = answers.NOT_BEFORE.text in wanted_in(case) or "older than" in answer_to(case)
    assert shown.today or shown.stacks or elsewhere or answer
    assert all(failure.name in command for command in shown.commands)


def undecided(axis, failure, case, of):
    """The values of an axis that a project leaves, and that weren't seen to show the failure."""
    values = {*of.left.get(axis, AXES[axis])} - {getattr(cell, axis) for cell in case.shown}
    among = [cell for cell in measured.outcomes(failure) if cell.variant in {each.name for each in case.variants}]
    if axis == "checkpointing" and {cell.checkpointing for cell in among} == {"off"}:
        return set()  # it doesn't depend on it
    if axis == "precision":  # in bf16 as in fp32 where that wasn't run
        ran = {cell.precision for cell in case.among}
        values -= {"bf16"} - ran
    forms = {name for name in values for cell in case.shown if name.startswith(f"{cell.strategy}-")}
    return values - (forms if axis == "strategy" else set())


def cases_there(failure, cell, *needed):
    """The cases of a cell's variant that an audit has for whoever trains just there today."""
    variant = failure.variant(cell.variant)
    left = {axis: frozenset([getattr(cell, axis)]) for axis in ("strategy", "checkpointing", "precision")}
    left |= {"trainer": frozenset([variant.trainer or OTHER_TRAINER])} | dict.fromkeys(needed, frozenset(["yes"]))
    return [case for case in cases(Project(left, TODAY), failure.name) if variant in case.variants]


@pytest.mark.slow
def test_todays_cells_are_found_again_and_those_that_train_are_not():
    """Breaks when who trains where the matrix shows a failure isn't told for certain, or who trains beside it is."""
    wrong = []
    for failure in FAILURES.values():
        for cell, did in measured.outcomes(failure).items():
            variant = failure.variant(cell.variant)
            if not cell.variant.endswith("broken") or cell.world_size != 2:
                continue
            if did[0] == "trains" and cases_there(failure, cell):
                wrong.append(f"{cell.id} trains, and is told of")
            if history.shows(failure, cell, did):
                case, *_ = cases_there(failure, cell, *variant.needs) or [None]
                if not case or {*wanted_in(case)} - {variant.look_for}:
                    wrong.append(f"{cell.id} is not told as certain")
                for need in variant.needs:
                    without = cases_there(failure, cell, *{*variant.needs} - {need})
                    open_ = [case for case in without for each in case.open if need in each.about]
                    if not open_ or not all(case.asks or need == BY_DEFAULT for case in open_):
                        wrong.append(f"{cell.id}: {need} is not asked for")
    assert not wrong


@pytest.mark.slow
def test_whoever_has_just_the_releases_of_a_run_is_told_what_it_did():
    """Breaks when an audit draws a conclusion from other releases where these were run themselves or are a stack that
    a failure names, or is sure of a failure and has nothing to show for it."""
    of_stacks = {name: each.versions for name, each in measured.named_stacks().items()}
    wrong = []
    for failure in FAILURES.values():
        for cell in filter(lambda cell: cell.broken, measured.outcomes(failure)):
            known = history.observations_of(failure, cell)
            wrong += [f"{cell.id}: no run" for each in known if each.shows and each.stack and not each.did]
            asked = [(each, of_stacks[each.stack]) for each in known if each.stack in of_stacks]
            if cell.world_size == 2 and measured.possible(failure, cell):
                for stack in history.pinned(failure, cell):
                    did, versions = measured.outcomes(failure, stack)[cell], measured.pins(stack)
                    [there] = [each for each in known if each.versions == history.parsed(versions)]
                    if there.did == did and there.shows is not None:  # else a run says otherwise
                        asked.append((there, versions))
            for each, versions in asked:
                exactly = {name: ranges.exactly(version) for name, version in versions.items()}
                answer = answers.behaviour(failure, cell, exactly)
                wrong += [f"{cell.id} on {each.stack}: {answer}"] * (answer != (each.shows is True, None))
    assert not wrong


def test_a_release_that_only_a_pinned_stack_shows_is_told_of(tmp_path, asked):
    """Breaks when an audit knows the months and today alone, or can't say on what it stands or how to repeat it."""
    name = "zero2_ga_wrong_gradient"
    config = '{"gradient_accumulation_steps": 4, "zero_optimization": {"stage": 2}}'
    train = "output_dir: x\ngradient_accumulation_steps: 4\nbf16: false\nfp16: false\n"
    files = {"ds.json": config, "train.yaml": train, "requirements.txt": pins(**measured.pins("deepspeed-0.18.2"))}
    _, out, _ = asked("audit", put(tmp_path, files), "--json")
    [finding] = [finding for finding in json.loads(out)["findings"] if finding["failure"] == name]
    [case] = finding["cases"]
    assert finding["certain"] and "accumulation" in case["holds"]
    assert case["outcomes"] == ["diverges (differs)"] and "deepspeed-0.18.2" in case["stacks"]["pinned"]
    assert "--stack 'deepspeed-0.18.2'" in case["repeat"][0] and case["measured"].endswith("deepspeed-0.18.2")
    assert any(fate["claim"] == "ZeRO-1 instead of ZeRO-2" for fate in case["remedies"])


@pytest.mark.parametrize(
    ("deepspeed", "norm", "unlike"),
    [
        (">=0.19.3", 1, "no"),
        (">=0.19.3", 0, "yes"),
        ("<0.19.3", 1.0, "yes"),
        ("==0.18.2", 0.0, "no"),
        (">=0.18", 1.0, "yes no"),
        (">=0.18", 0.3, "yes"),
    ],
)
def test_what_deepspeed_clips_at_by_itself_is_the_releases(tmp_path, deepspeed, norm, unlike):
    """Breaks when a norm that is DeepSpeed's own is taken for another one, or an unknown release for any."""
    train = f"output_dir: x\nmax_grad_norm: {norm}\n"
    results = written(tmp_path, {"requirements.txt": f"deepspeed{deepspeed}\n", "train.yaml": train})
    assert results.left["own max_grad_norm"] == {*unlike.split()}
    assert [*map(str, results.sources["own max_grad_norm"])] == [f"train.yaml:2 max_grad_norm: {norm}"]


GRPO_UNDER_DDP = {"strategy": "ddp", "checkpointing": "reentrant", "trainer": "grpo", "adapter": "yes"}
GKD_UNDER_DDP = {"strategy": "ddp", "checkpointing": "off", "trainer": "gkd", "average_tokens_across_devices": "yes"}
OLDER, NEWER = "trl is older than 0.16.0", "trl is 1.7.0 or newer"
LOOK_FOR = FAILURES[TWICE].variant("broken").look_for
NEWER_THAN_ALL = "your releases, newer than any that was measured, do what trl 1.16.0 does"


@pytest.mark.parametrize(
    ("failure", "place", "asked", "wanted"),
    [
        (NO_GRAD, GRPO_UNDER_DDP, "==0.15.2", []),
        (NO_GRAD, GRPO_UNDER_DDP, ">=0.15,<0.16", []),
        (NO_GRAD, GRPO_UNDER_DDP, "", [OLDER]),
        (NO_GRAD, GRPO_UNDER_DDP, ">=0.16", None),
        (OVER_RANKS, GKD_UNDER_DDP, "<1.7", None),
        (OVER_RANKS, GKD_UNDER_DDP, "==1.7.0", []),
        (OVER_RANKS, GKD_UNDER_DDP, "==1.16.0", []),
        (OVER_RANKS, GKD_UNDER_DDP, ">=1.0", [NEWER]),
        (OVER_RANKS, GKD_UNDER_DDP, "==99.0", [NEWER_THAN_ALL]),
    ],
)
def test_a_range_over_the_release_of_a_turn_is_an_if(failure, place, asked, wanted):
    """Breaks when a range that reaches over a fix, or over what began a failure, is taken for either side of it."""
    known = cases(setup({"trl": asked} if asked else {}, **place), failure)
    assert [wanted_in(case) for case in known] == ([] if wanted is None else [wanted])


def test_what_only_today_showed_is_not_claimed_of_other_releases(recorded):
    """Breaks when a cell that was run today alone is told as sure of whoever has another release."""
    place = {"strategy": "zero2-offload", "checkpointing": "reentrant", "trainer": OTHER_TRAINER}  # in no month's runs
    recorded(f"{TWICE}/broken/ddp/off/fp32/w2/cpu")
    [case] = cases(setup({"deepspeed": "==0.17.0"}, **place), TWICE)
    assert answers.TODAY_ONLY.text in wanted_in(case)
    [case] = cases(Project(setup(**place).left, TODAY), TWICE)
    assert wanted_in(case) == [LOOK_FOR]


@pytest.fixture
def recorded(monkeypatch):
    """Runs of one cell, each on its own stack, instead of all recorded ones; nothing is kept for other tests."""

    def put(cell, **runs):
        row = Cell.parse(cell)
        stacks = {name: MeasuredStack(name.replace("_", "-"), versions) for name, (versions, _) in runs.items()}
        rows = [Row(row.name, stacks[name].name, *did) for name, (_, did) in runs.items()]
        monkeypatch.setattr(history, "observations_of", UNCACHED)
        monkeypatch.setattr(history, "_releases", RELEASES)
        monkeypatch.setattr(measured, "oldest", OLDEST)
        monkeypatch.setattr(store, "stacks", lambda: {each.name: each for each in stacks.values()})
        monkeypatch.setattr(store, "rows", lambda failure: {row: rows})
        monkeypatch.setattr(measured, "monthly", lambda failure: {})

    return put


def stack(**versions):
    return measured.pinned() | versions


def state(name, **asked):
    """What is known of a cell with today's releases, but for those that are asked for."""
    cell = Cell.parse(name)
    versions = TODAY | {package: ranges.parse(text) for package, text in asked.items()}
    return answers.behaviour(FAILURES[cell.failure], cell, versions)


RAISED = ("raises", next(iter(FAILURES[TWICE].errors)))


def test_a_run_with_another_torch_tells_of_its_own_releases_alone(recorded):
    """Breaks when an error that was recorded with an older torch puts releases of other packages out of their order, or
    isn't told to whoever has just that torch."""
    cell = f"{TWICE}/broken/fsdp1-full/reentrant/fp32/w2/cpu"
    recorded(cell, other_1=(stack(torch="2.12.0"), RAISED))
    assert history.observations_of(FAILURES[TWICE], Cell.parse(cell))[0].versions["torch"] == Version("2.12.0")
    assert state(cell) == (True, None)
    cell = f"{TWICE}/broken/single/off/fp32/w1/cpu"
    recorded(cell, other_1=(stack(torch="2.9.0"), RAISED))
    for torch, answer in ("==2.9.0", True), ("==2.13.0", False), (">=2.9", None):
        assert state(cell, torch=torch)[0] is answer, torch


def test_a_release_that_trained_between_two_that_raised_is_not_told_of_them(recorded):
    """Breaks when only the errors of older stacks are known."""
    cell = f"{TWICE}/broken/zero2-offload/reentrant/fp32/w2/cpu"
    raised = {f"other_{n}": (stack(deepspeed=version), RAISED) for n, version in enumerate(("0.15.0", "0.17.0"))}
    for more, shows in ({}, True), ({"between": (stack(deepspeed="0.16.0"), ("trains",))}, False):
        recorded(cell, **raised, **more)
        assert state(cell, deepspeed="==0.16.0") == (shows, None)


def test_the_nearest_run_that_got_that_far_is_what_older_releases_do(recorded):
    """Breaks when a failure is excluded for old releases as the oldest run ended before it, with another error."""
    cell = f"{TWICE}/broken/zero2-offload/reentrant/fp32/w2/cpu"
    oldest = {"deepspeed-0.15.4": (stack(deepspeed="0.15.4"), ("raises", "other"))}
    recorded(cell, **oldest, other=(stack(deepspeed="0.16.0"), RAISED))
    shows, why = state(cell, deepspeed="==0.14.0")
    assert shows is None and "deepspeed 0.16.0" in why.text and state(cell, deepspeed="==0.15.4") == (False, None)


def test_a_control_that_goes_wrong_for_another_reason_is_not_the_failure(recorded):
    """Breaks when what one variant does when it fails is taken for the failure in a variant that trains."""
    for variant, shows in ("sft-broken", False), ("gold-broken", True):
        cell = f"{OVER_RANKS}/{variant}/ddp/off/fp32/w2/cpu"
        recorded(cell, old=(stack(trl="0.16.0"), ("diverges", "differs")))
        assert (state(cell, trl="==0.16.0")[0] is not False) == shows, variant


def test_an_unmeasured_way_to_train_is_told_of_nothing(tmp_path, asked):
    """Breaks when Megatron, or hybrid sharding, is taken for a strategy that was measured."""
    train = GRPO["grpo.yaml"] + "ddp_find_unused_parameters: false\n"
    files = changed(accelerate="distributed_type: MEGATRON_LM\n", grpo=train)
    code, out, _ = asked("audit", put(tmp_path, files))
    assert code == 0 and "MEGATRON_LM was not measured" in out and "none that was measured" in out


def test_fixes_are_what_the_timeline_shows():
    """Breaks when a first fixed release that is stated isn't what the months show on both sides of it."""
    for failure in FAILURES.values():
        for fix in failure.history.fixed:
            relevant = [c for c in measured.outcomes(failure) if answers.fixed(failure, c) is fix]
            runs = [s for cell in relevant for s in history.observations_of(failure, cell) if fix.package in s.versions]
            first = ranges.public(fix.version)
            before = [s for s in runs if s.versions[fix.package] < first]
            after = [s for s in runs if s.versions[fix.package] >= first]
            assert any(s.shows for s in before), f"no month before {fix.package} {fix.version} shows {failure.name}"
            assert after and not any(s.shows for s in after), f"{failure.name} is there after {fix.version}"


@pytest.mark.parametrize(("deepspeed", "verdicts"), [("0.19.2", "refuted verified"), ("0.19.3", "verified refuted")])
def test_a_remedy_is_what_it_is_with_the_release_that_a_project_has(tmp_path, asked, deepspeed, verdicts):
    """Breaks when somebody is told to set what fails with the release that they pin, because today's makes it right."""
    files = {
        "requirements.txt": pins(deepspeed=deepspeed),
        "ds.json": '{"zero_optimization": {"stage": 2, "reduce_bucket_size": "auto"}}',
        "train.yaml": "trainer: sft\noutput_dir: x\nmax_grad_norm: 0.5\nbf16: false\nfp16: false\n",
    }
    _, out, _ = asked("audit", put(tmp_path, files), "--json")
    results = {each["failure"]: each for each in json.loads(out)["findings"]}
    case = results["deepspeed_gradient_clipping_omitted"]["cases"][0]
    words = {fate["claim"].partition(",")[0]: fate["verdict"] for fate in case["remedies"]}
    assert [words["`max_grad_norm=1.0`"], words["`max_grad_norm=0`"]] == verdicts.split()
    assert ("today" if deepspeed == "0.19.3" else "with deepspeed 0.19.2") in case["measured"]


def test_without_versions_certain_takes_every_release_that_was_measured():
    """Breaks when five of 21 months are enough for versions that nobody says, which may be any."""
    months = {stack.month for stack in measured.months()} - {packages.TODAY}
    wrong = [
        cell.id
        for failure in FAILURES.values()
        for cell in measured.outcomes(failure)
        if failure.variant(cell.variant).broken and measured.possible(failure, cell)
        if answers.behaviour(failure, cell, {})[0]
        if not months <= {each.stack for each in history.observations_of(failure, cell) if each.shows}
    ]
    assert not wrong


GRPO_UNDER_ZERO2 = {**GRPO_UNDER_DDP, "strategy": "zero2", "precision": "fp32"}
OLD = "trl==0.15.2 transformers==4.49.0 accelerate==1.4.0 peft==0.14.0 deepspeed==0.17.0"
ODD = "trl==1.16.0 transformers==4.57.1 accelerate==1.15.0 peft==0.21.2 deepspeed==0.19.8"


def pinned(text):
    """The versions that a text of pins asks for, by package."""
    return {name: f"=={version}" for name, _, version in (pin.partition("==") for pin in text.split())}


@pytest.mark.parametrize("pins", [OLD, ODD], ids=["one is newer than the others", "of different times"])
def test_no_version_is_asked_for_that_is_stated(pins):
    """Breaks when what was not measured, the combination, isn't named with the command that runs it."""
    known = setup(pinned(f"{pins} torch=={measured.pinned()['torch']}"), **GRPO_UNDER_ZERO2)
    matches = conditions.findings(known)
    assert not {*deciding([[case.open for case in each.cases] for each in matches])} & known.versions.keys()
    combined = [(case, each) for one in matches for case in one.cases for each in case.open if each.decide]
    assert combined
    for case, condition in combined:
        assert all(pin in condition.decide for pin in pins.split())
        assert "not measured" in undecided_text(known, case, condition)
        _, bound, _ = app().parse_args(shlex.split(condition.decide)[1:], exit_on_error=False, print_error=False)
        assert requests.parse(bound.arguments["stack"]).requirements and bound.arguments["axes"].selection().cells


@pytest.mark.parametrize(
    ("pins", "decides", "words"),
    [
        (OLD, True, "deepspeed==0.17.0 with your other releases"),
        (OLD.replace("0.17.0", "0.12.2"), False, "deepspeed==0.12.2 with your other releases: older than any"),
        (OLD.replace("transformers==4.49.0 ", ""), False, "transformers: unknown (fails if your"),
    ],
)
def test_the_release_that_was_not_measured_is_named_and_run_where_that_decides(pins, decides, words):
    """Breaks when a command is printed for releases that nothing here runs on, or beside one that nobody stated."""
    known = setup(pinned(pins), **GRPO_UNDER_ZERO2)
    case = cases(known, NO_GRAD)[0]
    [condition] = [each for each in case.open if {*each.about} & {"deepspeed", "transformers"}]
    assert condition.about == (re.match(r"\w+", words)[0],) and bool(condition.decide) == decides
    assert undecided_text(known, case, condition).startswith(words)


def test_an_unknown_torch_is_asked_for_by_its_name():
    """Breaks when a reason that is torch's is said of another package."""
    today = {name: f"=={measured.pinned()[name]}" for name in ("deepspeed", "transformers")}
    known = conditions.findings(setup(today | {"torch": "==2.1.2"}, strategy="zero2"))
    open_ = [each for one in known for case in one.cases for each in case.open]
    torch = [each for each in open_ if each.wanted.startswith("your torch does what")]
    assert torch and all(each.about == ("torch",) for each in torch)
