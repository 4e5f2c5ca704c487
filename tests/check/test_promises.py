"""What `check` promises in the wild: no answer that nothing was run for, and no advice that makes things worse."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNDECIDED, EXIT_UNEXPECTED, TargetFailed, UsageError
from faultline.base.paths import ROOT
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from faultline.check import beside, cell, command, findings, next_steps, target, view
from faultline.check.result import CheckResult
from faultline.ranks import report
from faultline.ranks.facts import Facts
from faultline.runs.oracle import Cause
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

    def run(model, strategy, mode="off", units=""):
        asked = target.parse(f"{FILE}:{model}", "", (), units)
        if (model, units) not in references:
            (place := folder / f"{model}{units}").mkdir()
            references[model, units] = References(place)
        at = Cell("check", "model", strategy, mode, "fp32", 2)
        return beside.run(asked, shared_server, references[model, units], at)

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


@pytest.mark.slow
def test_all_causes_of_a_cell_are_told_the_gravest_first(run):
    """Breaks when weights that are wrong hide under buffers that differ between ranks."""
    wrong, alone = run("critic", "zero2"), run("average", "zero2")
    assert findings.causes(wrong)[0] in ("differs", "unmoved") and findings.causes(wrong)[1] == "buffers-apart"
    assert "differs by" in wrong.detail.partition("buffers differ")[0]
    assert findings.causes(alone) == ("buffers-apart",), "the near miss has one cause"
    assert [[form.results[0] for form in group.forms] for group in findings.groups([alone, wrong])] == [
        [wrong],
        [alone],
    ]


def test_weights_that_may_be_wrong_because_of_buffers_are_told_beside_them():
    """Breaks when both are one problem, and only the buffers of it are shown."""
    checked = Checked(facts=Facts(model="Model"), causes=(Cause("differs", "weights"), Cause("buffers-apart", "")))
    both = entry("zero2", outcome="diverges", signature="buffers-apart", detail="weights; buffers", checked=checked)
    lines = next_steps.next_steps(findings.groups([both])[0], [both])
    assert any("for another reason" in line for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "agreed", "said"),
    [
        ("configured", ("shares", "rows"), "every gradient and weight agrees."),
        ("of_ones_own_rows", ("shares",), "the mean of the ranks' losses in one process, and not with one process on"),
        ("quantised", ("rows",), "agrees with one process on all rows, and not with the mean of the ranks' losses"),
    ],
)
def test_an_answer_says_which_process_it_agrees_with(run, model, agreed, said):
    """Breaks when a codebook that all ranks share is called wrong, or a contrastive loss right, without saying of what
    kind of a single process that is true."""
    result = run(model, "zero2")
    assert result.outcome == "trains" and beside.alike(result) == agreed, result.detail
    assert said in view.verdict([result])


@pytest.mark.slow
def test_towers_with_half_of_their_gradient_are_told_with_the_factor(run):
    """Breaks when features that were gathered without their gradient have no cause."""
    result = run("of_gathered_rows", "ddp")
    words = "every gradient of those that are off is 0.5 times what it should be (1 / world size)"
    assert words in beside.beside(result, beside.ROWS).detail and result.outcome == "diverges"
    both = [result, run("of_gathered_rows", "fsdp2")]
    [group] = findings.groups(both)
    assert not group.match, "no engine is to blame"
    assert "nor with one process on all rows" in " ".join(next_steps.next_steps(group, both))


@pytest.mark.slow
def test_what_depends_on_the_units_of_fsdp_is_marked(run):
    """Breaks when a cell that trains, or fails, only with the units that check has chosen is told without them."""
    result, healthy = run("around", "fsdp2"), run("configured", "fsdp2")
    other = beside.beside(result, beside.UNITS)
    assert result.outcome == "trains" and other.outcome == "raises", (result, other)
    assert beside.beside(healthy, beside.UNITS) is None
    [line] = view.other_units([result, healthy])
    assert "fsdp2: trains here, and raises with the root as FSDP's only unit" in line
    assert "other units of FSDP" in view.verdict([result, healthy])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("units", "outcome", "other"), [("root", "raises", "blocks"), ("Linear", "trains", "root only")]
)
def test_units_are_those_that_are_asked_for(run, units, outcome, other):
    result = run("around", "fsdp2", units=units)
    assert (result.outcome, result.checked.beside[0].what) == (outcome, other), result.detail


@pytest.mark.slow
def test_units_that_a_model_has_not_are_refused(run):
    with pytest.raises(TargetFailed, match="no module of the model is a Blok; there are Linear"):
        run("around", "fsdp2", units="Blok")


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "zero3", "fsdp2"])
def test_random_draws_are_alike_and_named_with_their_lines(run, strategy):
    """Breaks when a mixture that draws its second expert is called wrong under every engine, and no word is said of
    random numbers."""
    result = run("drawing", strategy)
    assert result.outcome == "trains", result.detail
    lines = FILE.read_text().splitlines()
    drawn = [lines[int(place.partition(":")[2].split()[0]) - 1] for place in result.checked.facts.draws]
    for word, line in zip(("multinomial", "random.random()", "generator="), drawn, strict=True):
        assert word in line
    assert not run("configured", strategy).checked.facts.draws


@pytest.mark.slow
def test_a_forward_pass_in_a_hook_is_no_checkpoint_and_its_error_is_known(run):
    """Breaks when GradCache is said to checkpoint, or when check calls an error unknown that diagnose names."""
    results = [run("grad_cache", "zero2"), run("grad_cache", "zero3"), run("grad_cache", "ddp")]
    assert results[0].checked.facts.checkpointing == "off" and results[2].outcome == "trains"
    [group] = findings.groups(results)
    assert group.failure.name == "zero_double_reduction" and "second backward pass" in group.match.mechanism
    assert not any("checkpointing" in fate.claim.swap for fate in group.fates), "nothing is checkpointed here"


@pytest.mark.parametrize(
    ("facts", "offered"), [({"unequal": ("left",)}, False), ({"no_gradient": ("left.weight",)}, True)]
)
def test_what_other_rows_train_is_not_to_be_frozen(facts, offered):
    """Breaks when experts that other ranks train are called unused parameters, to be frozen."""
    detail = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
    checked = Checked(facts=Facts(model="Model", **facts))
    [group] = findings.groups([entry("ddp", outcome="raises", signature="other", detail=detail, checked=checked)])
    assert group.failure.name == "ddp_unused_vision_tower"
    assert any("freeze" in fate.claim.text for fate in group.fates) is offered


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
    ("name", "said"),
    [
        ("", "name the function that builds the model, as "),
        ("biuld", "has no function biuld; did you mean build?"),
        ("nothing_alike", "has no function nothing_alike; it has build"),
        ("Net", "Net is called without arguments, and needs width"),
        ("Deep", "Deep is called without arguments, and needs width"),
        ("Ready", ""),
        ("imported", ""),
        ("made", ""),
    ],
)
def test_what_a_file_says_is_told_before_anything_starts(tmp_path, name, said):
    """Breaks when somebody waits for a minute to be told of a typing error, or a function from elsewhere is refused."""
    (tmp_path / "train.py").write_text(WRITTEN)
    if not said:
        assert target.parse(f"{tmp_path}/train.py:{name}", "").function == name
        return
    with pytest.raises(UsageError) as refused:
        target.parse(f"{tmp_path}/train.py:{name}", "")
    assert said in str(refused.value)


@pytest.mark.parametrize("error", [ImportError, RuntimeError])
def test_a_package_that_is_broken_is_told_with_its_cause(tmp_path, error):
    """Breaks when "Could not import X" is all that somebody learns of a library that another one lacks."""
    try:
        try:
            raise OSError("libcudart.so.12: cannot open")
        except OSError as cause:
            raise error("Could not import X") from cause
    except error as raised:
        message, _ = cell.explained(report.error_report(raised), tmp_path)
    assert "Could not import X, because of OSError: libcudart.so.12" in message
