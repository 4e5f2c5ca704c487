"""Upstream reports: what each is for has to run in its file, and what it tells of remedies was tried on its cell."""

import ast
import re
import sys
import sysconfig
from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from faultline.base.packages import pinned
from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.export import cell as cells
from faultline.export import emit, issue, upstream
from faultline.maintain import reports
from tests.support.night import sampled

PACKAGES = {"pytorch": "torch"}  # where it isn't the repository's name
# Every file takes its model from transformers: what is for transformers has to run what else it is about.
OWN = re.compile(r"\w*Trainer\(|\.save_pretrained\(")
TWICE = "ddp_peft_reentrant_ready_twice/{}/ddp-find-unused/reentrant/fp32/w2/cpu"
ADDRESSED = [name for name, failure in failures().items() if failure.upstream and reports.cell_to_report(failure)]


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled(ADDRESSED, 4, lambda name: failures()[name].upstream))
def test_a_report_runs_the_library_that_it_is_for(name):
    """Breaks when maintainers are sent a file in which their library has no part."""
    where = cells.place(reports.cell_to_report(failures()[name]))
    text, (_, repository) = emit.write(where), failures()[name].upstream.lower().split("/")
    assert bool(where.variant.trainer) == ("add_callback(" in text), "a report of a trainer runs that trainer"
    tree = [*ast.walk(ast.parse(text))]
    imported = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in tree if isinstance(node, ast.ImportFrom)}
    assert PACKAGES.get(repository, repository) in {module.partition(".")[0] for module in imported}
    assert repository != "transformers" or OWN.search(text), "it only has its model from transformers"


@pytest.mark.parametrize(
    ("cell", "answer"),
    [
        # With its defaults the trainer runs nowhere else.
        (TWICE.format("sft-default_broken"), {"non-reentrant": "yes", "sft-broken+ddp": "yes"}),
        (TWICE.format("broken"), {"non-reentrant": "yes", "ddp": "yes", "ddp-static-graph": "yes", "zero2": "yes"}),
        ("deepspeed_gradient_clipping_omitted/broken/zero3/off/bf16/w2/cpu", {"explicit": "yes"}),
        (
            "fsdp2_method_or_child_outside_root_forward/sft-head_broken/fsdp2/off/fp32/w2/cpu",
            {"head_of_logits": "yes", "fsdp2-no-reshard": "no"},
        ),
    ],
)
def test_a_report_tells_of_the_remedies_that_are_about_its_cell(cell, answer):
    """Breaks when maintainers read that something helps, or doesn't, which was measured on another form of it."""
    where = cells.place(Cell.parse(cell))
    expected = {text: word.partition(";")[0] for text, word in issue.tried_remedies(where)}
    assert expected == {issue.prose(where.failure.claims[key].text): word for key, word in answer.items()}


def test_what_holds_in_some_places_is_told_with_the_others():
    """Breaks when maintainers read `yes` of what helps in some cells, or another failure's cell counts as one more."""
    saved = cells.place(Cell.parse("rank0_only_save/broken/zero3/off/fp32/w2/cpu"))
    helps = "yes; elsewhere crashes (SIGSEGV) under fsdp1-full, fsdp1-grad-op in sft-broken"
    assert dict(issue.tried_remedies(saved))["save on all ranks"] == helps
    cell = Cell.parse("zero_double_reduction/broken/zero2/reentrant/fp32/w2/cpu")
    tried = [answer for text, answer in issue.tried_remedies(cells.place(cell)) if "one call of the module for" in text]
    assert tried == ["in some runs; elsewhere raises (marked-ready-twice) under ddp-find-unused"]
    other = "a rank was killed by SIGSEGV (of another cause)"
    rows = {names: answer for names, answer in issue.across(saved) if "another cause" in answer}
    saving = rows.pop("`tp`")
    assert "invalid python storage" in saving and rows == {"`fsdp1-full`, `fsdp1-grad-op`": other}


def test_a_report_shows_where_each_rank_waits():
    """Breaks when a maintainer is told of a hang, and not in which calls the ranks are."""
    library = 'File "/tmp/export-x/lib/site-packages'
    stack = "".join(f'  {library}/torch/c10d.py", line {n} in inner{n}\n' for n in range(6))
    stack += f'  {library}/accelerate/accelerator.py", line 3706 in save_state\n'
    for line, name in ((52, "save"), (119, "one_rank"), (137, "<module>")):
        stack += f'  File "/tmp/export-x/repro.py", line {line} in {name}\n'
    output = f"rank 0: ZeRO-3\nrank 0 waits in\nStack (most recent call first):\n{stack}the ranks ended\n"
    assert issue._printed(output).splitlines()[3:-1] == [
        "rank 0: ZeRO-3",
        "rank 0 waits in",
        *(f'  File "site-packages/torch/c10d.py", line {n} in inner{n}' for n in range(3)),
        "  ...",
        '  File "site-packages/accelerate/accelerator.py", line 3706 in save_state',
        '  File "repro.py", line 52 in save',
    ]


@pytest.mark.usefixtures("no_file")
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("global_count_without_world_size", "every gradient is 0.5 times what it should be (1 / world size)."),
        ("distillation_loss_over_ranks", "every weight moves 0.5 times as far as it should (1 / world size)."),
        ("fsdp2_forward_before_optimizer", "never moved: lm_head.weight, model.embed_tokens.weight, model.norm.weight"),
        (
            "ddp_unfreeze_after_wrap",
            "what differs first from one process: step 2, in the backward pass, model.norm (model.norm.weight)",
        ),
    ],
)
def test_a_silent_failure_is_told_as_it_was_measured(name, words):
    """Breaks when maintainers read that weights differ, and nobody says how."""
    where = cells.place(reports.cell_to_report(failures()[name]))
    assert f": no error, but {words}" in issue.write_issue(where).partition("**Why.**")[0]
    assert words.split(",")[0] in " ".join(cells.introduction(where).split()), "the file doesn't tell it"
    other = replace(where, pins={**where.pins, "torch": "1.0"})
    assert cells.finding(other).words == [], "it was measured on other releases"


@pytest.mark.usefixtures("no_file")
def test_the_line_at_fault_is_in_its_release():
    """Breaks when a link leads to another line than the one that raised, or the line that is blamed is another."""
    packages, raise_, silent = Path(sysconfig.get_path("purelib")), set(), set()
    for failure in failures().values():
        fault, cell = failure.history.fault, reports.cell_to_report(failure)
        if fault:
            assert fault.version == pinned(ROOT / "requirements.txt")[fault.package], failure.name  # look it up again
            assert (packages / fault.file).read_text().splitlines()[fault.line - 1].strip() == fault.text, failure.name
        if not cell:
            continue
        where = cells.place(cell)
        shown, url = upstream.line_at_fault(where)
        if where.kind in ("raises", "hangs") and url:
            raise_.add(failure.name)
            file, line, name = re.match(r"`(\S+)`, line (\d+), in `(\S+)`", shown).groups()
            [error, *_] = cells.recorded(where)
            assert re.search(rf'File "site-packages/{file}", line {line},? in {re.escape(name)}', error.traceback)
            source = (packages / file).read_text().splitlines()[int(line) - 1].strip()
            assert source in error.traceback or error.outcome == "hangs", f"{failure.name}: run it and `record` it"
            assert re.fullmatch(rf"https://github\.com/[\w-]+/[\w-]+/blob/v[\d.]+/(src/)?{file}#L{line}", url)
        elif where.kind not in ("raises", "hangs") and fault:
            silent.add(failure.name)
            assert f"line {fault.line}: `{fault.text}`" in issue.write_issue(where)
    assert len(raise_) >= 10 and len(silent) >= 10


@pytest.mark.usefixtures("no_file")
def test_the_projects_report_is_that_of_the_stack(tmp_path, monkeypatch):
    """Breaks when a form's own report is missing, is of other versions, or its failure ends the export."""
    where = cells.place(reports.cell_to_report(failures()["distillation_loss_over_ranks"]))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    upstream.printed.cache_clear()
    assert "trl env can't be run" in upstream.environment(where)[1]
    for script, expected in (
        ("echo '/home/me/x 1.0'", "<path> 1.0"),
        (f"echo {'y' * 300}", "y" * 300),
        ("echo no >&2; exit 3", "exit code 3: no"),
    ):
        upstream.printed.cache_clear()
        (tmp_path / "trl").write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / "trl").chmod(0o755)
        command, text = upstream.environment(where)
        assert command == "trl env" and expected in text
        shown = f"<summary><code>trl env</code></summary>\n\n```text\n{text}\n```"
        assert shown in issue.write_issue(where, report=(command, text))
    monkeypatch.setattr(upstream, "PATIENCE", 0.01)
    (tmp_path / "trl").write_text("#!/bin/sh\nsleep 1\n")
    upstream.printed.cache_clear()
    assert "gave no answer within" in upstream.environment(where)[1]
    assert "was not run: other versions" in upstream.environment(replace(where, pins={"torch": "1.0"}))[1]
    monkeypatch.setattr(upstream, "versions", lambda: (_ for _ in ()).throw(PackageNotFoundError))
    assert "was not run: not all libraries under test are installed" in upstream.environment(where)[1]
    upstream.printed.cache_clear()


@pytest.mark.parametrize(
    ("cell", "did", "words"),
    [
        ("zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu", None, "Run on CPU with gloo; not run on a GPU."),
        ("grpo_lora_no_grad/broken/single/reentrant/fp32/w1/cpu", None, "Run on CPU; not run on a GPU."),
        ("grpo_lora_no_grad/broken/single/reentrant/fp32/w1/cpu", "diverges", "on a GPU it does this: diverges."),
        ("zero3_dummy_loss/broken/zero3/off/fp32/w2/cuda", None, "Run on a GPU."),
    ],
)
def test_a_report_says_whether_a_gpu_was_there(cell, did, words, monkeypatch):
    """Breaks when maintainers take a run on CPU for one on a GPU, or aren't told what one showed."""
    cell = Cell.parse(cell)
    row = SimpleNamespace(did=(did,))
    monkeypatch.setattr(upstream.store, "rows", lambda failure: {replace(cell, device="cuda"): [row]} if did else {})
    assert words in upstream.devices(SimpleNamespace(cell=cell, failure=failures()[cell.failure]))
