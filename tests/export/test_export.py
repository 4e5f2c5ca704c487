"""Exports: one file that shows a cell by itself, and the issue around it."""

import ast
import dataclasses
import fnmatch
import functools
import os
import re
import statistics
import subprocess
import sys
import textwrap
import tomllib
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from ruff import find_ruff_bin

from faultline import scenario
from faultline.base import paths
from faultline.base.errors import EXIT_USAGE, UsageError
from faultline.catalogue import loading, stories
from faultline.cells.cell import Cell
from faultline.export import cell as cells
from faultline.export import decide, emit, issue, modules, names, program, prove, specialise
from faultline.maintain import reports
from faultline.observations import measured

CELLS = prove.reproducing()
RAISES = "zero_double_reduction/broken/zero2/reentrant/fp32/w2/cpu"
# Only some of its ranks have the error, and the others lose their peer.
ONE_RAISES = "ddp_unused_vision_tower/images_on_one_rank/ddp/off/fp32/w2/cpu"
WRAPPED = "zero3_dummy_loss/one_by_one/fsdp2/off/fp32/w2/cpu"
DIVERGES = "zero_double_reduction/broken/zero3-small/reentrant/fp32/w2/cpu"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
TRAINS = "zero3_dummy_loss/no_dummy/zero2/off/fp32/w2/cpu"
ALONE = "grpo_lora_no_grad/broken/single/reentrant/fp32/w1/cpu"
# One of each outcome, family of strategies and level, most of them at night.
RUN = (
    "distillation_loss_over_ranks/gkd-broken/ddp/off/fp32/w2/cpu",  # diverges in a trainer
    "zero_weights_loaded_after_initialize/broken/zero2/off/fp32/w2/resumed/cpu",
)
ACCUMULATES = "zero12_manual_ga_keeps_last_microbatch/broken/zero1/off/fp32/w2/cpu"
LACKS = "zero3_save_pretrained_empty/broken/zero3/off/fp32/w2/cpu"
HANGS = "rank0_only_save/sft-broken/zero3/off/fp32/w2/cpu"
WHOLE = "zero3_save_pretrained_empty/state_dict/zero3/off/fp32/w2/cpu"
MISPLACED = "fsdp_reference_model/broken/fsdp2/off/bf16/w2/cpu"
RUN_AT_NIGHT = (
    *(MISPLACED, ACCUMULATES, LACKS, HANGS, DIVERGES),
    "ddp_unused_vision_tower/images_on_one_rank/fsdp1-full/off/fp32/w2/cpu",  # crashes
    "zero3_lora_target_parameters_no_checkpoint/sft-aux_loss/single/reentrant/fp32/w1/cpu",  # in one process too
    "rank0_random_state_for_every_rank/broken/ddp/off/fp32/w2/resumed/cpu",  # of which only the random state shows it
    "synced_reference_starts_again/grpo-broken/ddp/off/fp32/w2/resumed/cpu",  # a trainer, which samples on
)
WITHOUT_TORCH = "sys.modules['torch'] = None; runpy.run_path('renamed.py', run_name='__main__')"
# What other variants need in these: a variable, a branch, a parameter with another default.
SHARED = (
    "fsdp_sharded_save_model_writes_nothing/sft-broken/fsdp2/off/fp32/w2/cpu",
    "fsdp2_mixed_original_dtype/reported_broken/fsdp2/off/bf16/w2/cpu",
    "fsdp2_tied_embeddings_split_groups/broken/fsdp2/off/fp32/w2/cpu",
)
NO_SYNC = "nullcontext() if micro == 1 or in_one_process else wrapped.no_sync()"
OWN_BACKWARD = "(value / 2).backward()"
SCHEDULED = "scheduler_steps_num_processes/broken/zero2/off/fp32/w2/cpu"
FORWARD = "fsdp2_forward_before_optimizer/broken/fsdp2/off/fp32/w2/cpu"
ON_CPU = "AcceleratorState.__init__ = init"  # as accelerate is patched, so that it does what was asked for
GRANULAR = '(2, WORLD_SIZE // 2), mesh_dim_names=("replicate"'


@functools.cache
def exported(cell):
    return emit.write(cells.place(Cell.parse(cell)))


def night(*values):
    return pytest.param(*values, marks=pytest.mark.nightly)


def has(cell, *needs, lacks=()):
    return cell, needs, lacks


def accumulates(strategy, *needs):
    """An engine that isn't told of micro-batches, or whose run in one process has others, accumulates otherwise."""
    both = ("text_batch(step * 2 + micro, rank, world_size)", "world_size = 1 if in_one_process else")
    native = f"zero12_manual_ga_keeps_last_microbatch/native/{strategy}/off/fp32/w2/cpu"
    return has(native, *needs, *both)


# What is in the file of a cell, and what isn't.
CONTENT = [
    has(
        RAISES,
        *("reduced", "SIGNATURE", "gradient_checkpointing_enable", "__compatible_ops__"),
        "slices.shape[0] * slices.shape[1]",  # the broken variant's number of calls
        "# of a single layer, the bug that trains wrongly in small buckets makes an error",  # comments are kept
        f"lr={scenario.LR}, momentum={scenario.MOMENTUM})",  # as in the catalogue
        "`uv run {sys.argv[0]}`",  # whatever it is called
        # Other remedies, other outcomes' checks, branches that were decided.
        lacks=("remedy", "one_call", "two_calls", "reference", "DistributedDataParallel", "fully_shard", "Dropout"),
    ),
    has(WRAPPED, lacks=("AcceleratorState",)),
    has(TRAINS, "in_one_process"),
    *map(has, (ALONE, *RUN)),
    # Each engine accumulates in its own way.
    accumulates(
        "zero1",
        '"gradient_accumulation_steps": 2',
        "backward(value / 2 if in_one_process else value)",
        "            if not in_one_process:\n                wrapped.step()\n",
    ),
    accumulates("ddp", NO_SYNC, OWN_BACKWARD),
    accumulates("fsdp1-full", NO_SYNC, OWN_BACKWARD),
    accumulates("fsdp2", "    wrapped.set_requires_gradient_sync(micro == 1)", OWN_BACKWARD),
    # A loop of one's own is unknown to the engine, and ends a step with all parts of it.
    has(ACCUMULATES, "backward(value / 2)\n        if in_one_process:", lacks=("_accumulation_steps", "nullcontext")),
    has(ACCUMULATES.replace("broken", "boundary"), "() if in_one_process else boundary(wrapped, micro == 1):"),
    # A file that is named for shards within a node and copies between nodes has both.
    has("custom_loss_ignores_num_items/broken/fsdp1-hybrid/off/fp32/w4/cpu", GRANULAR),
    has("custom_loss_ignores_num_items/broken/fsdp2-hsdp/off/fp32/w4/cpu", GRANULAR),
    has("fsdp_reference_model/broken/fsdp2-hsdp/off/fp32/w4/cpu", "=ParallelismConfig(dp_replicate_size=2"),
    has("fsdp2_tied_embeddings_split_groups/sft-broken/fsdp2-hsdp/off/fp32/w4/cpu", '": ParallelismConfig('),
    has("custom_loss_ignores_num_items/broken/zero3-hpz/off/fp32/w4/cpu", '"zero_hpz_partition_size": 2'),
    has("custom_loss_ignores_num_items/trainer-broken/zero2/off/fp32/w2/cpu", '_batch_size_per_gpu": "auto"'),
    # An optimizer of its own and what is between steps: in both runs, which share no object.
    has(
        "zero_unfreeze_after_initialize/broken/zero2/off/fp32/w2/cpu",
        *("    optimizer = optimizer(model)\n", "        before_step(wrapped, step)\n", "optimizers = []"),
        "    model.model.requires_grad_(False)",
        lacks=("anew",),
    ),
    # The number of ranks isn't written into what the run in one process does as well.
    has(FORWARD, "setup.data_world", "data_rank=rank, data_world=world_size"),
    # A checkpoint is saved by the variant's own code, by all ranks, and loaded by another process.
    has(
        LACKS,
        *("model.save_pretrained(folder, is_main_process=main", "from_pretrained(saved"),
        *('"--load", FOLDER]', "if step == 1:"),
        lacks=("zero_to_fp32", "variant", "reference"),
    ),
    # The last window of an epoch may be short, and is as short in both runs.
    has(
        "accumulate_partial_last_window/by_hand_broken/ddp/off/fp32/w2/cpu",
        *("window = 2 if step < 2 else 1", "for micro in range(window):", "(value / 2).backward()"),
    ),
    # A schedule is prepared with the model, and stepped in both runs.
    has(
        SCHEDULED, "wrapped, optimizer, scheduler = accelerator.prepare(", "optimizer.step()\n        scheduler.step()"
    ),
    has(WHOLE, "stage3_gather_16bit_weights_on_model_save", "get_state_dict("),
    has(HANGS, "stage3_gather_16bit_weights_on_model_save", ON_CPU),  # its trainer's config is changed
    has(MISPLACED, ON_CPU),
    has("ref_model_reloaded_from_path/grpo-broken/fsdp2/off/bf16/w2/cpu", "mock.patch"),
    *map(has, (*SHARED, *RUN_AT_NIGHT[4:])),
]


@pytest.mark.parametrize(("cell", "needs", "lacks"), CONTENT)
@pytest.mark.slow
def test_a_file_has_what_its_cell_needs_and_nothing_of_this_repository(cell, needs, lacks):
    """Breaks when a file would only run here, has what nothing in it uses, lacks what its cell does, or isn't tidy."""
    text, where = exported(cell), cells.place(Cell.parse(cell))
    assert [each for each in needs if each not in text] == [], "it lacks these"
    assert [each for each in lacks if each in text] == [], "it has these"
    tree = ast.parse(text)
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    roots = {name.partition(".")[0] for name in imported}
    assert not roots & {"faultline", "tiny_models", "repros", "failure"}
    assert text.startswith("# SPDX-License-Identifier: Apache-2.0\n# /// script\n")
    header = tomllib.loads("\n".join(line[2:] for line in text.splitlines()[2:4]))
    pinned = {pin.partition("==")[0] for pin in header["dependencies"]}
    outside = {emit.DISTRIBUTIONS.get(name, name) for name in roots - sys.stdlib_module_names}
    assert outside <= pinned, "it imports what its header doesn't pin"
    assert all(where.pins[pin.partition("==")[0]] in pin for pin in header["dependencies"])
    assert not [line for line in text.splitlines()[5:] if len(line) > 120 and "http" not in line]
    shared = ["--isolated", "--line-length", "120", "-"]
    dead = [find_ruff_bin(), "check", "--select", "F,B018,SIM22", *shared]
    unused = subprocess.run(dead, input=text, capture_output=True, text=True)
    assert unused.returncode == 0, unused.stdout
    format_ = [find_ruff_bin(), "format", "--diff", "--config", "format.skip-magic-trailing-comma=true", *shared]
    assert not subprocess.run(format_, input=text, capture_output=True, text=True).stdout
    assert "sys.exit(print(" not in text
    assert '" in arguments:' not in text, "it asks under which strategy it is"
    prose = issue.write_issue(where).partition("<details>")[0]
    patches = [answer for code, answer in issue.CHANGED.items() if code in text]
    assert [answer for answer in issue.CHANGED.values() if answer in prose] == patches, "patches that nobody is told of"
    if "reference = train(" in text:
        assert text.index("reference = train(") < text.index("dist.init_process_group("), "it is alone after all met"
    assert ("the words" in text or "room for what" in text) <= ("VOCABULARY" in text), "the words are not there"
    assert ("scripted_sampling" in text) <= ("grpo" in cell), "it learns from texts that are given"
    methods = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    assert "without_dropout" not in methods or "dropout" in text.replace("without_dropout", "")


@pytest.mark.slow
def test_an_engine_that_is_made_anew_is_made_so_in_both_runs():
    """Breaks when a model that is replaced between steps is not in one of the two runs."""
    anew = exported("zero_unfreeze_after_initialize/anew/zero2/off/fp32/w2/cpu")
    assert anew.count("deepspeed.initialize(") == 2 and anew.count("if not in_one_process:") == 2
    assert anew.count("model = replaced") == 1 and anew.count("optimizer = make_optimizer(model)") == 2


@pytest.mark.slow
def test_the_error_is_told_in_whole_sentences():
    """Breaks when a file or an issue quotes an error that ends in the middle of a word or a sentence."""
    for cell in (RAISES, ONE_RAISES, ALONE):
        where = cells.place(Cell.parse(cell))
        answer = " ".join(ast.get_docstring(ast.parse(exported(cell))).split())
        expected = re.search(r"Instead: (.*?) Records:", answer)[1]
        whole = " ".join(where.error.split()).replace('"', "'")
        remaining = expected.removesuffix(" ...")
        assert whole.startswith(remaining) and (expected == whole or remaining[-1] in ".?!")
        assert where.error.strip() in issue.write_issue(where)


@given(st.text(alphabet="ab. ?!'", max_size=500))
def test_law_an_error_is_cut_between_words(error):
    """Breaks when a cut runs through a word, loses the beginning, or makes a docstring that is too long."""
    cut = cells.beginning(error)
    assert cut == error or (cut.endswith(" ...") and error.startswith(cut.removesuffix(" ...")))
    assert len(cut) <= cells.LONGEST_ERROR + 4


@pytest.mark.nightly
@pytest.mark.slow
def test_every_variant_that_fails_can_be_exported_and_is_short():
    """Breaks when a new failure can't be folded, or exports grow beyond what somebody reads in an issue."""
    one_each = {(cell.failure, cell.variant): cell for cell in reversed(CELLS)}  # the first: the rest add a mesh
    refused, lengths = {}, {}
    for variant, cell in one_each.items():
        try:
            text = exported(cell.id)
        except UsageError as error:
            if not str(error).endswith("its error has no signature to look for"):
                refused[cell.id] = str(error)
            continue
        compile(text, cell.id, "exec")
        lengths[variant] = len(text.splitlines())
    assert refused == {}
    for life, limit in {"straight": 150, "resumed": 210}.items():  # which also saves and loads
        of_life = [(cell.failure, cell.variant) for cell in CELLS if cell.life == life]
        assert statistics.median(lengths[each] for each in of_life if each in lengths) < limit


@pytest.mark.slow
@pytest.mark.parametrize("cell", [*RUN, *map(night, (ALONE, *RUN_AT_NIGHT))])
def test_a_file_does_what_its_cell_does(cell):
    """Breaks when a file by itself doesn't show what the cell shows here."""
    proof = prove.one(Cell.parse(cell))
    assert not proof.why, f"{proof.why}: results/exports/ has the file and its output"
    if cell == MISPLACED:  # also where each rank is started by torchrun
        code, output = prove.run(exported(cell), TORCHRUN)
        assert code == 0 and output.count("REPRODUCED: ") == 2 and "NOT REPRODUCED" not in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cell", "launcher"), [night(RAISES, ()), (RAISES, TORCHRUN), (ONE_RAISES, ()), night(ONE_RAISES, TORCHRUN)]
)
def test_an_error_is_told_and_no_rank_is_left(cell, launcher, tmp_path):
    """Breaks when an error is lost because another rank died with it, or a rank outlives its file."""
    (tmp_path / "repro.py").write_text(exported(cell))
    with (tmp_path / "output").open("w") as output:
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        command = [sys.executable, *launcher, "repro.py"]
        ended = subprocess.run(command, cwd=tmp_path, env=environment, stdout=output, stderr=output, check=False)
    every = psutil.process_iter(["environ"])
    left = [each for each in every if (each.info["environ"] or {}).get("TMPDIR") == str(tmp_path)]
    answer = (tmp_path / "output").read_text()
    where = cells.place(Cell.parse(cell))
    assert ended.returncode == 0, answer
    assert "REPRODUCED: the error above" in answer and "NOT REPRODUCED" not in answer
    assert re.search(where.failure.errors[where.signature], answer), "the error is not shown"
    assert left == []


# What is changed in a file, how it ends then, and what it says.
CHANGED = [
    (TRAINS, "", "", 1, [": 0 of ", "parameters are off"]),
    (ALONE, "(?<=SIGNATURE = ).*", 'r"something else"', 1, []),
    (RAISES, "import deepspeed\n", "import deepspeed_that_nobody_has\n", 2, ["NOT TRIED.*_that_nobody_has"]),
    night(RAISES, "Qwen2Config, ", "Qwen2Config, NotThere_that_nobody_has, ", 2, ["NOT TRIED.*_that_nobody_has"]),
    night(ALONE, "", "", 0, ["as pinned"]),
    night(ALONE, '(?<=^PINS)(.*"torch": ")[^"]*', r"\g<1>1.0.0", 0, ["NOT AS PINNED", r"1\.0\.0"]),
    # A checkpoint that has everything, one with other weights, and a rank that is slow.
    night(WHOLE, "", "", 1, ["15 parameters were trained; 0 things are wrong with the checkpoint"]),
    night(
        *(WHOLE, "            live = weights\\(wrapped\\)\n", '\\g<0>            live["model.norm.weight"] *= 1.001\n'),
        *(0, [r"model\.norm\.weight is off by 0\.[01]\d* %", "1 things are wrong"]),
    ),
    night(HANGS, re.escape('save(built, Path(FOLDER, "saved"))'), "__import__('time').sleep(10 * rank)", 1, []),
]


@pytest.mark.slow
@pytest.mark.parametrize(("cell", "there", "instead", "code", "says"), CHANGED)
def test_near_misses_and_seeded_faults_end_as_they_are(cell, there, instead, code, says):
    """Breaks when a file finds what isn't there, takes any exception for the documented one, a slow rank for a hang or
    shapes for weights; when a missing package passes for an answer; or when nobody learns of other versions."""
    text, count = re.subn(there, instead, exported(cell), count=1, flags=re.MULTILINE)
    ended, output = prove.run(text)
    assert count and ended == code, output
    assert [each for each in says if not re.search(each, output)] == [], output
    assert ("NOT AS PINNED" in output) == ("1.0.0" in instead)
    assert code != 0 or re.search("(?<!NOT )REPRODUCED: ", output)
    assert code != 1 or output.rstrip().endswith("NOT REPRODUCED")
    assert code != 2 or (output.count("NOT TRIED") == 1 and "REPRODUCED" not in output and "Traceback" not in output)


def test_a_file_says_what_it_takes(tmp_path):
    """Breaks when who asks for help, or mistypes an option, waits for a training."""
    text = exported(RAISES)
    (tmp_path / "renamed.py").write_text(text)
    for word, code in (("--help", 0), ("--git-bisct-me", 2)):
        command = [sys.executable, "-c", f"import runpy, sys; sys.argv = ['renamed.py', {word!r}]; {WITHOUT_TORCH}"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == code and "--git-bisect" in done.stdout + done.stderr


@pytest.mark.slow
def test_what_a_file_has_not_is_refused():
    """Breaks when a file trains without what its scenario does to the loop."""
    with pytest.raises(UsageError, match="has no loop of a scenario"):
        exported(SCHEDULED.replace("broken", "unprepared"))


@pytest.mark.slow
def test_a_cell_that_trains_today_is_said_to(asked):
    """Breaks when who exports a cell that trains takes its NOT REPRODUCED for a mistake of the file."""
    _, out, errors = asked("export", TRAINS)
    assert "NOT REPRODUCED, and exit code 1, is what is expected of it" in " ".join(out.split())
    assert errors == ["this cell trains on today's releases: the file will print NOT REPRODUCED"]
    assert not asked("export", RAISES)[2]
    code, out, [line] = asked("export", TRAINS, "--markdown")
    assert code == EXIT_USAGE and not out and "there is nothing to report" in line


@pytest.mark.nightly
@pytest.mark.slow
def test_a_file_answers_git_bisect(tmp_path):
    """Breaks when `git bisect run` takes a good revision for a bad one, or an answer from what says nothing."""

    def ended(text):
        (tmp_path / "repro.py").write_text(text)
        environment = {**os.environ, "TMPDIR": str(tmp_path)}
        command = [sys.executable, "repro.py", "--git-bisect"]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=False).returncode

    raises, trains = exported(ALONE), exported(TRAINS)
    pattern = next(line for line in raises.splitlines() if line.startswith("SIGNATURE"))
    assert ended(raises) == 1 and ended(trains) == 0
    assert ended(raises.replace(pattern, 'SIGNATURE = r"something else"')) == 125, "another error says nothing"
    assert ended(raises.replace("import torch\n", "import torch_that_nobody_has\n", 1)) == 125


SETS = """
def trainer(variant, arguments, setup):
    return Trainer(model(), SFTConfig(**changed_config(arguments, {"gradient_clipping": %s}, setup)))
"""


def test_what_a_trainer_changes_in_the_config_is_in_the_file(tmp_path):
    """Breaks when a file's DeepSpeed config lacks what the failure changes in it only where it runs."""

    def trainer():
        variant = SimpleNamespace(remedy="broken", trainer="sft")
        return specialise.decide_function(modules.Sources(tmp_path, 4), "trainer", {"variant": variant})

    (tmp_path / "failure.py").write_text(SETS % "0.5")
    assert specialise.trainer(trainer(), {}).deepspeed == {"gradient_clipping": 0.5}
    (tmp_path / "failure.py").write_text(SETS % "size(arguments)")
    with pytest.raises(UsageError, match="known only when it runs"):
        specialise.trainer(trainer(), {})


@pytest.mark.slow
def test_the_issue_has_the_file_and_the_outcomes():
    """Breaks when what is to be pasted upstream lacks the file, its versions or what other strategies do."""
    where = cells.place(Cell.parse(RAISES))
    text = issue.write_issue(where)
    blocks = [token for token in MarkdownIt().parse(text) if token.type == "fence"]
    assert [block.info for block in blocks] == ["text", "python"]
    assert blocks[1].content == emit.write(where)
    assert "has already been reduced" in blocks[0].content
    across, _, tried = text.partition("What was tried against it")
    assert "| yes |\n" in tried and "| no |\n" in tried, "a reader wants to know what helps"
    rows = re.findall(r"^\| (`.*) \| (.*) \|$", across, re.MULTILINE)
    outcomes = measured.outcomes(where.failure)
    assert len({answer for _, answer in rows}) == len(rows) < 15, "strategies that do the same are in one row"
    each = [(strategy, answer) for group, answer in rows for strategy in re.findall(r"`([\w-]+)`", group)]
    above = text.partition("| strategies")[0].splitlines()[-2]
    assert len(each) > 15 and f"torch {measured.pinned()['torch']}" in above
    for strategy, answer in each:
        results = [o for c, (o, _) in outcomes.items() if c.strategy == strategy and c.variant == where.cell.variant]
        assert ("diverges" if answer.startswith("no error, and other") else answer.partition(" ")[0]) in results
    for record in where.failure.records:
        assert record in text


@pytest.mark.usefixtures("no_file")
@pytest.mark.parametrize(
    ("cell", "in_issue", "in_file"),
    [
        (
            "grpo_lora_no_grad/broken/zero3/reentrant/fp32/w2/cpu",
            "It trains without an error. A single process raises one too, so the strategy is not the cause.",
            "Expected: it trains without an error (a single process raises one too). Instead: ",
        ),
        (ALONE, "It trains without an error.", "Expected: it trains without an error. Instead: "),
        (DIVERGES, issue.TRAINS, "Expected: it trains as in one process. Instead: "),
    ],
)
def test_a_single_process_that_raises_too_is_no_measure(cell, in_issue, in_file):
    """Breaks when a maintainer is told that it trains in one process, and the table below says that it raises."""
    where = cells.place(Cell.parse(cell))
    assert f"**What is expected.** {in_issue}\n" in issue.write_issue(where)
    assert in_file in " ".join(cells.introduction(where).split())


@pytest.mark.usefixtures("no_file")
def test_the_issue_says_why_and_shows_what_ranks_printed():
    """Breaks when a maintainer is told that something is wrong, and neither where it comes from nor by how much."""
    where = cells.place(Cell.parse(DIVERGES))
    text = issue.write_issue(where, "python 3\nrank 1, step 1: 3 are offrank 0: |x|\n\nREPRODUCED: all\n")
    assert "```text\nrank 1, step 1: 3 are off\nrank 0: |x|\n```" in text, "as they were printed"
    assert "```text\npython 3\nrank 1, step 1: 3 are off\nrank 0: |x|\nREPRODUCED: all\n```" in text, "all of it"
    assert "rinted" not in issue.write_issue(where), "nothing ran"
    noise = '/a/x.py:3: FutureWarning: old\n  f(x)\n10%|# | 1/9\n  File "/tmp/a/repro.py", line 1\n'
    assert issue.transcript(noise) == '  File "repro.py", line 1'
    shown = issue.transcript("".join(f"{n}\n" for n in range(90))).splitlines()
    assert shown[:: issue.BEGINNING] == ["0", "... (10 lines are left out)", "49", "69", "89"], "a cut is told"
    for failure in loading.failures().values():
        shown = reports.cell_to_report(failure)
        blocks = re.split(r"```.*?```", issue.write_issue(cells.place(shown)), flags=re.S) if shown else ()
        broken = [part for block in blocks for part in re.findall(r"(?m)^[^|\s<-].*\n[^|\s<-].*", block)]
        assert not broken, "GitHub shows a line that is broken by hand as two"
        assert not shown or "**What we ask for.** That " in "".join(blocks), "nobody knows what to do"
        cause = stories.paragraph(failure, "Cause")
        assert cause and "](../" not in cause, f"{failure.name}: nobody upstream has this repository"
        links = re.findall(r"[\w.-]+/[\w.-]+", failure.upstream)
        assert links == [failure.upstream] * bool(failure.upstream)


def test_a_report_shows_what_its_failure_names_and_tells_of_what_was_tried():
    """Breaks when a report shows another form than its failure names, or a cell on which nothing was tried."""
    every = {failure: reports.cell_to_report(failure) for failure in loading.failures().values()}
    shown = {failure.name: cell for failure, cell in every.items() if cell}
    for name, cell in shown.items():
        renamed = dataclasses.replace(cell, failure="x")
        assert fnmatch.fnmatchcase(renamed.name, loading.failures()[name].report or "*")
        assert issue.tried_remedies(cells.place(cell)), name
    with pytest.raises(UsageError, match="did you mean zero_double_reduction"):
        reports.run("zero_double_reductoin")
    assert shown["ddp_static_graph_no_sync"].name == "broken/ddp-static-graph/off/fp32/w2/cpu"
    assert {cell.failure for cell in CELLS} >= {*shown} and len(shown) > 20


@given(st.text(alphabet="`~a\n#|<", max_size=40))
def test_law_a_fence_holds_any_text(content):
    """Breaks when a text can end its block and be read as Markdown, or code in a title is none."""
    for text, shown in (("a `b_c` d_e", "a `b_c` d\\_e"), ("no `x", "no \\`x"), ("", "")):
        assert issue.prose(text) == shown
    tokens = MarkdownIt().parse(issue.fenced(content, "text"))
    assert [token.type for token in tokens] == ["fence"]


@pytest.mark.slow
def test_the_command_overwrites_nothing_unasked(asked, tmp_path):
    file = tmp_path / "repro.py"
    code, out, errors = asked("export", RAISES, "-o", str(file))
    assert code == 0 and not errors and str(file) in out
    assert file.read_text() == exported(RAISES)
    file.write_text("mine")
    code, _, errors = asked("export", RAISES, "-o", str(file))
    assert code == 2 and len(errors) == 1 and "--force" in errors[0] and file.read_text() == "mine"
    assert asked("export", RAISES, "-o", str(file), "--force")[0] == 0
    assert file.read_text() != "mine"
    code, out, errors = asked("export", RAISES)
    assert code == 0 and out == exported(RAISES)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [
        ("zero_double_reduction/broken/zero2/reentrant/fp32/w3/cpu", "did you mean zero_double_reduction/broken"),
        ("nonsense", "not a cell"),
        ("distillation_teacher_not_sharded/a2po-broken/zero3/off/fp32/w2/cpu", "create_reference_model refuses"),
        (
            "data_loader_starts_again/broken/ddp/off/fp32/w2/resized/cpu",
            "no file resizes a cell or loads a model in shards yet",
        ),
    ],
)
def test_mistakes_are_one_clear_line(asked, cell, expected):
    code, out, [error] = asked("export", cell)
    assert code == 2 and not out and expected in error


def decided(text, constants=True, **known):
    """The code of a function, in which what is known of its arguments is decided."""
    [node] = names.parsed(textwrap.dedent(text).strip())
    return names.code(decide.decide(node, known, {}, known, constants))


def test_what_is_known_is_decided():
    """Breaks when what the remedy decides stays in the code, a comment goes, or a column is made that nobody wants."""
    text = """
        def scenario(remedy):
            small = remedy == "small"
            checks = {"seen": look, "other": ask(remedy)}
            # stays
            if remedy != "seen":
                a()
            elif small:
                b()
            else:
                c(rows=2 if small else 4)  # stays too
            if not small and remedy in ("seen", "x"):
                d(checks.get(remedy), checks.get("none"))
            return {"one": 1}.get(remedy, size), f"{remedy}-1"
    """
    left = ["# stays", "c(rows=4)  # stays too", "d(look, None)", "return size, 'seen-1'"]
    assert decided(text, remedy="seen").splitlines() == ["def scenario(remedy):", *(f"    {line}" for line in left)]
    text = """
        def rows(columns):
            made = []
            for a in lines:
                row = {"x": a, "y": g(a), "z": 1}
                made.append({column: row[column] for column in columns.split()})
                other = {column: a for column in lines}
            return made, other
    """
    written_out = decided(text, columns="z x")
    assert 'made.append({"z": 1, "x": a})' in written_out.replace("'", '"')
    assert "row =" not in written_out and "for column in lines" in written_out
    text = """
    def f(remedy):
        others = {}
        others["x"] = 1
        name = "a"
        for name in others:
            g(name)
        items = []
        items.append(2)
        return others, name, items
    """
    same = decided(text, remedy="x").replace("'", '"')
    assert same == textwrap.dedent(text).strip(), "what is bound twice or changed is no constant"


@pytest.mark.parametrize(
    ("test", "remaining"),
    [
        ('"lora_" in name and False', ()),
        ("name and False and name", ()),
        ("name or True", ("yes",)),
        ("read(name) and False", ("yes", "read(name) and False")),
        ("name and True", ("yes", "if name:")),
    ],
)
def test_a_condition_that_one_side_decides_is_decided(test, remaining):
    """Breaks when a branch that nothing can reach is exported, or a call with an effect is lost."""
    left = decided(f"def f(name):\n    if {test}:\n        print('yes')\n    return name\n")
    assert all(each in left for each in remaining) and ("yes" in left) == ("yes" in remaining)


def test_nothing_is_computed_in_vain():
    """Breaks when a statement without effect stays, or one with an effect goes."""
    idle = "    f' {x}'[:2]\n    x.y\n    a = len(x)\n    b = h(x)\n    c = c\n    d = SimpleNamespace(x=x)\n"
    text = f'def f(x):\n    """Told."""\n{idle}    g(x)[0]\n    with nullcontext():\n        yield\n    return x'
    left = 'def f(x):\n    """Told."""\n    h(x)\n    g(x)[0]\n    yield\n    return x'
    assert decided(text, constants=False) == left
    same = "def f():\n    with nullcontext() if a else nullcontext():\n        c()"
    assert decided(same) == "def f():\n    c()"
    held = "def f():\n    with nullcontext() if a else b():\n        c()"
    assert decided(held) == held


def test_what_is_replaced_in_files_has_these_names():
    """Breaks when a function that files have in another form is renamed, and files begin to hold itself."""
    files = ("tiny_models/__init__.py", "tiny_models/data.py", "faultline/trainers.py")
    defined = "".join((paths.ROOT / file).read_text() for file in files)
    used = "build seeded records from_trl changed_config as_launched".split()
    assert [name for name in used if f"def {name}(" not in defined] == []
    for module, name, simpler in (*specialise.COMPARABLE, *specialise.SIMPLER):
        source = (paths.ROOT / f"{module.replace('.', '/')}.py").read_text()
        assert f"def {name}(" in source and f"def {simpler}(" in source


def test_only_functions_that_nothing_uses_go():
    """Breaks when a trainer of somebody's own loses its `compute_loss`, which the library calls."""
    text = """
        def trainer():
            def idle():
                pass

            class Custom(Trainer):
                def compute_loss(self, model):
                    return 1

            return Custom()
    """
    left = [each for each in ast.walk(ast.parse(decided(text))) if isinstance(each, ast.FunctionDef)]
    assert [each.name for each in left] == ["trainer", "compute_loss"]


FLAGS = {"ALONE": True, "half": 0}


def fitted(tmp_path, failure, main):
    """The program of a main part and the failure's functions, after they were fitted to each other, and its text."""
    (tmp_path / "failure.py").write_text(textwrap.dedent(failure))
    made = program.gather(modules.Sources(tmp_path, 4), textwrap.dedent(main), ("second", "train"), FLAGS)
    order = list(made.definitions)
    program.fit(made)
    return order, made.text()


def test_a_local_name_never_takes_the_place_of_one_from_around(tmp_path):
    """Breaks when a function's own variable, put where it is called, hides what the code there means by that name."""
    prepare = "def prepare(model):\n    ready = model.prepare()\n    ready.eval()\n    return ready\n"
    second = "def second(model):\n    ready['second'] = prepare(model)\n    return ready\n"
    assert "def prepare(" in fitted(tmp_path, f"ready = dict()\n{prepare}", second)[1]
    plain = "def second(model):\n    other = prepare(model)\n    return other\n"
    expected = "second(model):\n    ready = model.prepare()\n    ready.eval()\n    other = ready\n    return other"
    assert fitted(tmp_path, prepare, plain)[1].strip() == f"def {expected}"


def test_a_program_has_what_its_main_part_uses_each_behind_what_it_uses_itself(tmp_path):
    """Breaks when a file begins with what isn't defined yet, holds what nothing uses, or two things have one name."""
    failure = """
        def loss():
            return near() + SIZE
        def idle():
            return 1
        class Near(Base):
            pass
        def near():
            return Near()
        SIZE = 3
    """
    train = "def train(half=0):\n    if half or not ALONE:\n        return IDLE\n    return loss(), STEPS\n"
    order, text = fitted(tmp_path, failure, f"STEPS = 2\nIDLE = 3\n{train}")
    assert order == ["SIZE", "Near", "near", "loss", "STEPS", "train"]
    assert text.split() == "SIZE = 3 STEPS = 2 class Near(Base): pass def train(): return Near() + SIZE, STEPS".split()
    (tmp_path / "failure.py").write_text("from tiny_models.qwen2 import qwen2\ndef config():\n    return 1\n")
    with pytest.raises(UsageError, match="two things in it are named config"):
        program.gather(modules.Sources(tmp_path, 4), "def train():\n    return config(), qwen2()\n", ("train",), {})
