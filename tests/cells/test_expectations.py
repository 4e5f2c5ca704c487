"""Expectations: the file's rules, what they say of a cell, and what is refused."""

from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from faultline import strategies
from faultline.base.axes import CHECKPOINTING, PRECISIONS
from faultline.base.errors import UsageError
from faultline.catalogue import Variant
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome
from faultline.cells import expected as cells_expected
from faultline.cells import on_gpus
from faultline.cells.cell import Cell
from faultline.cells.expected import HEADER, Basis, Expectation, Rule, check, expect, first_rule, load, to_toml, verdict
from faultline.cells.on_gpus import GpuMachine, GpuRow, GpuRuns
from tests.support import entries

FAILURE = replace(
    entries.FAILURE,
    errors={"no-grad-fn": "does not require grad", "check": "no graph"},
    variants=(Variant("broken"), Variant("repaired"), Variant("broken", trainer="grpo")),
)
CELLS = [
    Cell("example", variant.name, strategy, checkpointing, precision, 1 if strategy == "single" else 2)
    for variant in FAILURE.variants
    for strategy in strategies.names()
    for checkpointing in CHECKPOINTING
    for precision in PRECISIONS
]
STACK = {"trl": "0.19.1", "torch": "2.9.0+cpu"}
RAISES = 'outcome = "raises"'


def some(*values):
    return st.lists(st.sampled_from(values), max_size=2, unique=True).map(tuple)


RULES = st.lists(
    st.builds(
        Rule,
        variant=some("broken", "*broken", "repaired"),
        strategy=some("zero*", "zero3*", "ddp", "fsdp2"),
        checkpointing=some("off", "*reentrant"),
        precision=some(*PRECISIONS),
        world_size=some(1, 2),
        device=some("cpu", "cuda"),
        versions=st.sampled_from([(), (("trl", ">=1.0"),), (("trl", "<1.0"), ("torch", ">=2"))]),
        outcome=st.sampled_from(["raises", "hangs", "diverges"]),
        signature=some("no-grad-fn", "check", "other"),
        record=st.text(),
        reason=st.text(),
        not_measured=st.booleans(),
    ),
    max_size=6,
)


def test_a_missing_and_an_empty_file_expect_every_cell_to_train(tmp_path, write):
    assert load(tmp_path / "no.toml") == load(write("")) == load(write(HEADER)) == ()
    assert expect((), CELLS[0], STACK) == Expectation("trains", (), "")


def test_each_condition_keeps_other_cells_out():
    """Breaks when a rule counts for a cell that it isn't about."""
    axes = {"strategy": ("zero3*", "fsdp2"), "checkpointing": ("reentrant",), "precision": ("fp32",)}
    axes |= {"world_size": (2,), "device": ("cpu",), "versions": (("trl", ">=0.15,<1.0"),)}
    signatures, record = ("no-grad-fn", "other"), "https://example.org/1"
    rule = Rule(variant=("broken",), **axes, outcome="raises", signature=signatures, record=record)
    cell = Cell("example", "broken", "zero3-offload", "reentrant")
    assert expect((rule,), cell, STACK) == Expectation("raises", signatures, record)
    others = [{"variant": "grpo-broken"}, {"strategy": "zero2"}, {"checkpointing": "non-reentrant"}]
    others += [{"precision": "bf16"}, {"world_size": 4}, {"device": "cuda"}]
    assert {expect((rule,), replace(cell, **other), STACK).outcome for other in others} == {"trains"}


def test_versions_are_compared_by_their_base(write):
    """Breaks when a build or nightly version is another one than its release, or spelling makes another package."""
    holds = [(">=2.9", "2.9.0+cpu"), ("==2.9.0", "2.9.0+cu128"), (">=2.9", "2.9.0.dev2025"), (">=0.15,<1.0", "0.19.1")]
    others = [("<2.9", "2.9.0+cpu"), (">=0.15,<1.0", "1.0.0")]
    rules = [(Rule(outcome="raises", versions=(("torch", each),)), version) for each, version in (*holds, *others)]
    assert [first_rule([rule], CELLS[0], {"torch": version}) is rule for rule, version in rules] == [True] * 4 + [
        False
    ] * 2
    (rule,) = load(write(f'[[rule]]\nversions = {{ Flash_Attn = ">=2" }}\n{RAISES}'))
    assert first_rule([rule], CELLS[0], {"flash-attn": "2.1"}) is rule
    assert first_rule([rule], CELLS[0], {"torch": "2.1"}) is None, "a package that isn't there"


@given(RULES, RULES, st.sampled_from(CELLS), st.sampled_from(["0.19.1", "1.2"]))
def test_law_the_first_match_wins(before, after, cell, trl):
    stack = {**STACK, "trl": trl}
    match = first_rule(before, cell, stack)
    if match:
        assert expect(before + after, cell, stack) == expect([match], cell, stack), "a later rule was preferred"
    else:
        assert expect(before + after, cell, stack) == expect(after, cell, stack), "a rule that doesn't match counted"
    front = Rule(outcome="crashes", signature=("SIGABRT",))
    assert expect([front, *before], cell, stack).outcome == "crashes", "a rule in front was passed over"


@settings(max_examples=50)
@given(RULES)
@example([Rule(outcome="raises", reason='a "bell" \x07, DEL \x7f, \U0001f600 and\r\n[[rule]]')])
def test_law_what_is_written_is_read_back(tmp_path_factory, rules):
    file = tmp_path_factory.mktemp("written") / "expected.toml"
    text = to_toml(rules)
    file.write_text(text, encoding="utf-8")
    again = load(file)
    assert again == tuple(rules), "writing a rule and reading it changes it"
    assert to_toml(again) == text, "reading a file and writing it changes it"


FOUND = st.tuples(st.sampled_from([outcome.value for outcome in Outcome]), st.sampled_from(["", "a", "b"]))


@given(FOUND, some("a", "b"), FOUND)
def test_law_the_verdict_is_strict_both_ways(expected, signatures, results):
    expectation = Expectation(expected[0], signatures)
    same = results[0] == expected[0] and (not signatures or results[1] in signatures)
    result = verdict(expectation, *results)
    assert (result == "expected") == same, "something else than was expected passes, or what was expected fails"
    if not same and results[0] == "trains" and expected[0] != "trains":
        assert result == "unexpected pass"
    elif not same:
        assert result == ("unexpected failure" if expected[0] == "trains" else "changed")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[rule]]\noutcome = \n", "line 2"),
        ("[[rules]]\n", "unknown key 'rules'; did you mean rule?"),
        (f"[[rule]]\nstrategi = 'ddp'\n{RAISES}", "rule 1: unknown key 'strategi'; did you mean strategy"),
        ("[[rule]]\nstrategy = 'ddp'", "rule 1: `outcome` is missing"),
        (f"[[rule]]\n{RAISES}\n[[rule]]\noutcome = 'rises'", "rule 2: unknown outcome 'rises'; did you mean raises"),
        ("[[rule]]\noutcome = 'invalid'", "unknown outcome 'invalid'"),
        ("[[rule]]\noutcome = 7", "rule 1.outcome: expected a text"),
        (f"[[rule]]\nstrategy = []\n{RAISES}", "rule 1.strategy: an empty list says nothing"),
        (f"[[rule]]\nworld_size = '2'\n{RAISES}", "rule 1.world_size: expected a number"),
        (f"[[rule]]\nversions = '>=1'\n{RAISES}", "rule 1.versions: expected a table"),
        (f"[[rule]]\nversions = {{trl = '=>1'}}\n{RAISES}", "rule 1: Invalid specifier: '=>1'"),
        (f"[[rule]]\nversions = {{trl = 1}}\n{RAISES}", "rule 1.versions.trl: expected a text"),
        (f"[[rule]]\nnot_measured = true\n{RAISES}", "rule 1: not_measured is for a rule with a device"),
        (f"[[rule]]\nvariant = 'brokn'\n{RAISES}", "rule 1: unknown variant 'brokn'; did you mean broken"),
        (f"[[rule]]\nstrategy = ['ddp', 'zero4*']\n{RAISES}", "rule 1: unknown strategy 'zero4*'; did you mean zero"),
        (f"[[rule]]\nworld_size = 3\n{RAISES}", "rule 1: unknown world_size '3': one of 1, 2, 4"),
        (f"[[rule]]\nsignature = 'no-grad'\n{RAISES}", "rule 1: unknown signature 'no-grad'; did you mean no-grad-fn"),
        (f"[[rule]]\nversions = {{tlr = '>=1'}}\n{RAISES}", "rule 1: unknown package 'tlr'; did you mean trl"),
        (f"[[rule]]\nversions = {{trl = '>=9'}}\nvariant = 'brokn'\n{RAISES}", "rule 1: unknown variant 'brokn'"),
        (f"[[rule]]\nstrategy = 'single'\nworld_size = 4\n{RAISES}", "has all of strategy single, world_size 4"),
    ],
)
def test_a_mistake_in_the_file_is_named_in_one_line(write, text, message):
    """Breaks when a mistake, or a name that doesn't exist, has no place, or a name not the nearest."""
    file = write(text)
    with pytest.raises(UsageError) as error:
        check(FAILURE, load(file))
    files = ("/".join(file.parts[-3:]), "repros/example/expected.toml: ")
    assert str(error.value).startswith(files), "the message does not name the file"
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_hidden_rules_other_versions_and_other_devices_are_no_mistake():
    rules = (
        Rule(outcome="raises", signature=("no-grad-fn",)),
        Rule(variant=("broken",), outcome="hangs", signature=("no-progress",)),
        Rule(versions=(("trl", ">=99"),), outcome="diverges", signature=("unmoved",)),
        Rule(device=("cuda",), outcome="raises", signature=("other",)),
    )
    check(FAILURE, rules)


def test_what_is_impossible_has_its_reason():
    """Breaks when somebody is told that a cell can't be run, and not why: `bless` keeps a reason, and makes none."""
    rules = [(failure.name, rule) for failure in failures().values() for rule in cells_expected.rules(failure)]
    silent = [pair for pair in rules if pair[1].outcome == "impossible" and not pair[1].reason]
    assert not silent, f"give these rules a reason: {silent}"


# On a GPU a cell is expected to do as on the CPU until somebody measured there, and then what was measured.


TORCH = {"torch": "2.13.0", "trl": "1.15.0"}
H100 = GpuMachine("NVIDIA H100 80GB HBM3", "580.65.06", "13.0", "2.27.7", TORCH)
CPU = Cell("grpo_lora_no_grad", "broken", "ddp")
GPU = replace(CPU, device="cuda")
NO_GRAD = Rule(outcome="raises", signature=("no-grad-fn",), record="https://example.org/1")
ON_GPU = replace(NO_GRAD, device=("cuda",), signature=("two-devices",))


@pytest.fixture(autouse=True)
def _folder(monkeypatch, tmp_path):
    monkeypatch.setattr(on_gpus, "FOLDER", tmp_path)
    on_gpus._by_cell.cache_clear()
    yield
    on_gpus._by_cell.cache_clear()


def saw(*dids, machine=H100):
    on_gpus.write(GpuRuns(machine, [GpuRow(GPU.id, "nccl", *did) for did in dids]))


def test_what_is_expected_on_a_gpu_is_a_guess_until_somebody_ran_it_there():
    """Breaks when a guess about GPUs, or what somebody reported, looks like a measurement, or what ran like a guess."""
    assert expect([NO_GRAD], GPU, TORCH) == replace(expect([NO_GRAD], CPU, TORCH), basis=Basis.CPU)
    assert expect([], GPU, TORCH) == Expectation(basis=Basis.CPU) and expect([], CPU, TORCH).basis == Basis.MEASURED
    assert expect([replace(ON_GPU, not_measured=True), NO_GRAD], GPU, TORCH).basis == Basis.REPORT
    assert expect([ON_GPU, NO_GRAD], GPU, TORCH).basis == Basis.MEASURED
    only_on_cpu = replace(NO_GRAD, device=("cpu",))
    assert expect([only_on_cpu], GPU, TORCH) == Expectation(), "the rules tell GPUs apart, so somebody looked"


def test_what_was_measured_on_a_gpu_is_expected_there_from_then_on():
    """Breaks when what somebody sent is news in the next run, the CPU or a bumped stack is held to it, or one kind of
    GPU, whichever file comes first, decides what another is expected to do."""
    saw(("diverges", "differs"))
    should = expect([NO_GRAD], GPU, TORCH)
    assert should == Expectation("diverges", ("differs",), NO_GRAD.record)
    assert expect([NO_GRAD], CPU, TORCH).outcome == "raises"
    assert expect([NO_GRAD], replace(GPU, strategy="zero2"), TORCH).basis == Basis.CPU, "another cell was not measured"
    assert expect([NO_GRAD], GPU, TORCH | {"torch": "2.14.0"}).basis == Basis.CPU
    assert expect([NO_GRAD], GPU, TORCH | {"torch": "2.13.0+cu130"}).outcome == "diverges"
    saw(("trains",), machine=replace(H100, gpu="NVIDIA A100-SXM4-80GB"))
    assert expect([NO_GRAD], GPU, TORCH) == replace(expect([NO_GRAD], CPU, TORCH), basis=Basis.GPUS_DIFFER)


def test_a_cell_that_did_as_the_rules_say_keeps_all_that_they_allow():
    """Breaks when measuring a cell narrows a rule with several signatures to the one that was seen."""
    several = replace(NO_GRAD, signature=("no-grad-fn", "check"))
    saw(("raises", "check"))
    assert expect([several], GPU, TORCH) == replace(expect([several], CPU, TORCH), basis=Basis.MEASURED)


def test_a_file_says_what_was_written_and_another_content_is_refused(tmp_path):
    """Breaks when rows lose a field, a damaged file is passed over, or a machine and its file are not one to one."""
    assert H100.name == replace(H100, stack=dict(reversed(TORCH.items()))).name
    assert H100.name != replace(H100, driver="590.1").name
    rows = [GpuRow(GPU.id, "nccl", "raises", "no-grad-fn"), GpuRow(replace(GPU, strategy="zero2").id, "gloo", "trains")]
    file = on_gpus.write(GpuRuns(H100, rows))
    assert on_gpus.everything() == [GpuRuns(H100, sorted(rows))] and file.name.startswith("nvidia-h100-80gb-hbm3-")
    file.write_text("[]\n")
    with pytest.raises(UsageError, match="does not hold what cells did on GPUs"):
        on_gpus.everything()


@pytest.mark.slow
def test_what_the_catalogue_says_of_gpus_is_marked_until_somebody_measures(monkeypatch):
    """Breaks when a rule about GPUs is committed that no file of observations/gpus/ bears out and nothing marks."""
    monkeypatch.undo()
    rows = {row.cell for each in on_gpus.everything() for row in each.rows}
    for failure in failures().values():
        for rule in cells_expected.rules(failure):
            about = [name for name in rows if cells_expected.about(rule, Cell.parse(name))]
            assert not rule.device or rule.not_measured or about, f"{failure.name}: {rule}"
