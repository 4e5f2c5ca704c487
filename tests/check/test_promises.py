"""What `check` promises in the wild: no answer that nothing was run for, and no advice that makes things worse."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNDECIDED, EXIT_UNEXPECTED
from faultline.base.paths import ROOT
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.check import cell as checking
from faultline.check import command, findings, next_steps, target
from faultline.check.result import CheckResult
from faultline.ranks.facts import Facts
from faultline.runs.results import Checked
from faultline.runs.runner import References
from tests.support import entries

FILE = ROOT / "tests" / "support" / "wild_models.py"
IMPOSSIBLE = {"outcome": "impossible", "detail": "it needs a GPU"}


@pytest.fixture(scope="module")
def run(shared_server, tmp_path_factory):
    """The result of a model of wild_models.py in one cell."""
    folder = tmp_path_factory.mktemp("references")
    references = {}

    def run(model, strategy, mode="off"):
        known = references.setdefault(model, References(folder / model))
        known.folder.mkdir(exist_ok=True)
        return checking.run(
            target.parse(f"{FILE}:{model}", ""), shared_server, known, Cell("check", "model", strategy, mode, "fp32", 2)
        )

    return run


def entry(strategy, **changes):
    return entries.entry(Cell("check", "model", strategy, "off", "fp32", 2), **changes)


@pytest.mark.parametrize(
    ("cells", "code", "said"),
    [
        ([entry("single")], EXIT_UNDECIDED, "UNKNOWN: only a single process could be run. Ask for other strategies"),
        ([entry("ddp", **IMPOSSIBLE)], EXIT_UNDECIDED, "UNKNOWN: no cell could be run. What stands against the others"),
        ([entry("single"), entry("ddp", **IMPOSSIBLE)], EXIT_UNDECIDED, "others: it needs a GPU."),
        ([entry("single", outcome="diverges"), entry("ddp", **IMPOSSIBLE)], EXIT_UNEXPECTED, "1 of 2 configurations"),
        ([entry("ddp"), entry("zero2", **IMPOSSIBLE)], EXIT_AS_EXPECTED, "trains like a single process"),
    ],
)
def test_nothing_is_promised_of_strategies_that_were_not_run(monkeypatch, capsys, cells, code, said):
    """Breaks when a model that only ran in one process is told to train alike everywhere, with exit code 0."""
    result = CheckResult("train.py:build", (), tuple(cells))
    monkeypatch.setattr(command, "answer", lambda request: result)
    assert command.run(command.Request("train.py:build", Selection())) == code
    assert said in " ".join(capsys.readouterr().out.split())
    assert result.agrees is (code == EXIT_AS_EXPECTED)


@pytest.mark.slow
def test_what_needs_a_gpu_is_said(run):
    result = run("synchronised", "ddp")
    assert result.outcome == "impossible" and "--device cuda" in result.detail


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero2"])
def test_no_advice_leads_around_a_wrapper_that_no_forward_pass_goes_through(run, strategy):
    """Breaks when an actor-critic without `forward` is told to ask the model behind DDP, which then reduces nothing."""
    result = run("actor_critic", strategy)
    if result.outcome == "trains":  # DeepSpeed's engine has its model's attributes
        return
    lines = " ".join(next_steps.next_steps(findings.groups([result])[0], [result]))
    assert "getattr" not in lines and "`forward` do what `get_action_and_value` does" in lines
    assert "(not tried on your model)" in lines


def test_a_number_of_a_model_may_be_read_around_its_wrapper():
    """The near miss: what runs no module is read where it is."""
    facts = Facts(model="Model", order=("", "first"))
    detail = "AttributeError: 'DistributedDataParallel' object has no attribute 'number'"
    result = entry("ddp", outcome="raises", detail=detail, checked=Checked(facts=facts))
    assert "getattr" in next_steps.of_wrapper(SimpleNamespace(results=[result]))[0]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp2"])
def test_a_container_that_can_not_be_changed_is_left_as_it_is(run, strategy):
    """Breaks when a model with a frozen config can't be checked, or a counter beside it isn't put back."""
    result = run("configured", strategy)
    assert result.outcome == "trains", result.detail
