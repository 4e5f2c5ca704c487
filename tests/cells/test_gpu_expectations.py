"""What is expected of a cell on a GPU: the CPU's outcome until somebody measured there, and what was measured then."""

from dataclasses import replace

import pytest

from faultline.base.errors import UsageError
from faultline.catalogue.loading import failures
from faultline.cells import expected, on_gpus
from faultline.cells.cell import Cell
from faultline.cells.expected import Basis, Expectation, Rule, expect
from faultline.cells.on_gpus import Machine, Measured, Row

TORCH = {"torch": "2.13.0", "trl": "1.15.0"}
H100 = Machine("NVIDIA H100 80GB HBM3", "580.65.06", "13.0", "2.27.7", TORCH)
A100 = replace(H100, gpu="NVIDIA A100-SXM4-80GB")
CPU = Cell("grpo_lora_no_grad", "broken", "ddp")
GPU = replace(CPU, device="cuda")
RAISES = Rule(outcome="raises", signature=("no-grad-fn",), record="https://example.org/1")
ON_GPU = replace(RAISES, device=("cuda",), signature=("two-devices",))


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    monkeypatch.setattr(on_gpus, "FOLDER", tmp_path)
    on_gpus._by_cell.cache_clear()
    yield
    on_gpus._by_cell.cache_clear()


def saw(*dids, machine=H100):
    on_gpus.write(Measured(machine, [Row(GPU.id, "nccl", *did) for did in dids]))


def test_a_cell_on_a_gpu_is_expected_to_do_as_on_the_cpu_and_is_not_measured():
    """Breaks when a guess about GPUs looks like a measurement, or a cell on the CPU like a guess."""
    assert expect([RAISES], GPU, TORCH) == replace(expect([RAISES], CPU, TORCH), basis=Basis.CPU)
    assert expect([], GPU, TORCH) == Expectation(basis=Basis.CPU) and expect([], CPU, TORCH).basis == Basis.MEASURED


def test_a_rule_of_a_report_is_a_guess_and_one_of_a_run_is_not():
    """Breaks when what somebody reported counts as measured, or what was blessed on a GPU as a guess."""
    assert expect([replace(ON_GPU, not_measured=True), RAISES], GPU, TORCH).basis == Basis.REPORT
    assert expect([ON_GPU, RAISES], GPU, TORCH).basis == Basis.MEASURED
    only_on_cpu = replace(RAISES, device=("cpu",))
    assert expect([only_on_cpu], GPU, TORCH) == Expectation(), "the rules tell GPUs apart, so somebody looked"


def test_what_was_measured_on_a_gpu_is_expected_there_from_then_on():
    """Breaks when a difference that somebody sent comes out as news in the next run, or the CPU is held against it."""
    saw(("diverges", "differs"))
    should = expect([RAISES], GPU, TORCH)
    assert should == Expectation("diverges", ("differs",), RAISES.record)
    assert expect([RAISES], CPU, TORCH).outcome == "raises"
    assert expect([RAISES], replace(GPU, strategy="zero2"), TORCH).basis == Basis.CPU, "another cell was not measured"


def test_a_cell_that_did_as_the_rules_say_keeps_all_that_they_allow():
    """Breaks when measuring a cell narrows a rule with several signatures to the one that was seen."""
    several = replace(RAISES, signature=("no-grad-fn", "check"))
    saw(("raises", "check"))
    assert expect([several], GPU, TORCH) == replace(expect([several], CPU, TORCH), basis=Basis.MEASURED)


def test_what_was_measured_with_other_versions_says_nothing():
    """Breaks when a bump of the stack leaves the outcomes of the old one in force."""
    saw(("diverges", "differs"))
    assert expect([RAISES], GPU, TORCH | {"torch": "2.14.0"}).basis == Basis.CPU
    assert expect([RAISES], GPU, TORCH | {"torch": "2.13.0+cu130"}).outcome == "diverges"


def test_kinds_of_gpus_that_differ_leave_the_rules_in_force():
    """Breaks when one kind of GPU, whichever file comes first, decides what another is expected to do."""
    saw(("diverges", "differs"))
    saw(("trains",), machine=A100)
    assert expect([RAISES], GPU, TORCH) == replace(expect([RAISES], CPU, TORCH), basis=Basis.GPUS_DIFFER)


def test_a_file_says_what_was_written_and_another_content_is_refused(tmp_path):
    """Breaks when rows lose a field on their way, or a damaged file is passed over."""
    rows = [Row(GPU.id, "nccl", "raises", "no-grad-fn"), Row(replace(GPU, strategy="zero2").id, "gloo", "trains")]
    file = on_gpus.write(Measured(H100, rows))
    assert on_gpus.everything() == [Measured(H100, sorted(rows))] and file.name.startswith("nvidia-h100-80gb-hbm3-")
    file.write_text("[]\n")
    with pytest.raises(UsageError, match="does not hold what cells did on GPUs"):
        on_gpus.everything()


def test_not_measured_is_for_rules_with_a_device():
    """Breaks when somebody marks a rule of the CPU, where every rule was measured."""
    failure = failures()["grpo_lora_no_grad"]
    with pytest.raises(UsageError, match="rule 1: not_measured is for a rule with a device"):
        expected.check(failure, [replace(RAISES, not_measured=True)])


def test_what_the_catalogue_says_of_gpus_is_marked_until_somebody_measures(monkeypatch):
    """Breaks when a rule about GPUs is committed that no file of observations/gpus/ bears out and nothing marks."""
    monkeypatch.undo()
    for failure in failures().values():
        rows = {row.cell for each in on_gpus.everything() for row in each.rows}
        for rule in expected.rules(failure):
            about = [name for name in rows if expected.about(rule, Cell.parse(name))]
            assert not rule.device or rule.not_measured or about, f"{failure.name}: {rule}"


def test_the_machine_of_a_file_is_in_its_name_and_nothing_else_is():
    """Breaks when two drivers share a file, or the same machine gets another file each time."""
    assert H100.name == replace(H100, stack=dict(reversed(TORCH.items()))).name
    assert H100.name != replace(H100, driver="590.1").name
