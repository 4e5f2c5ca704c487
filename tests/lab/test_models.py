"""`prove models`: what a run of many model types records, and the page that is made from it."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

from faultline.base.errors import TargetFailed, UsageError
from faultline.base.markdown import row
from faultline.catalogue.outcomes import Did
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection
from lab.proofs import models, models_page, models_record
from lab.proofs.models_record import Difference, Summary
from tests.support import entries
from tests.support.night import sampled

QWEN = models.Architecture("qwen2", "Qwen2ForCausalLM", "causal language models")


def cell(variant="qwen2", strategy="ddp", mode="off"):
    return Cell.parse(f"models/{variant}/{strategy}/{mode}/fp32/w2/cpu")


def summary(model="qwen2", **changes):
    return Summary(**{"model": model, "model_class": "Model", "kind": QWEN.kind, "lora": False} | changes)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """The record and the page in a folder of the test's own."""
    monkeypatch.setattr(models_record, "RECORD", tmp_path / "models.jsonl")
    monkeypatch.setattr(models_page, "PAGE", tmp_path / "models.md")
    monkeypatch.setattr(models_page, "SCRIPTS", tmp_path / "models")
    return tmp_path


def test_a_model_that_cannot_be_trained_is_listed_with_the_reason():
    """Breaks when a model without a batch counts as one that trains everywhere."""

    def refuse(*_):
        raise TargetFailed("no batch could be made", "")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models.checked_cell, "run", refuse)
        result = models.run_cell({"qwen2": None}, SimpleNamespace(versions={}), None, cell())
    made = models_record.summary(QWEN, [result])
    assert (result.outcome, made.refused, made.outcomes) == ("impossible", "no batch could be made", {})
    assert "0 of 1 model type trained" in models_page.page([made])
    assert "- `qwen2`: no batch could be made" in models_page.page([made])


def test_a_difference_has_its_known_failure_and_its_place():
    """Breaks when a known failure is listed as a new one, or as one of all strategies."""
    wrong = entries.entry(cell(strategy="fsdp2", mode="reentrant"), "diverges", signature="unmoved", detail="moves not")
    cells = [entries.entry(cell(), "trains"), wrong]
    made = models_record.summary(QWEN, cells)
    [difference] = made.differences
    assert (difference.failure, difference.did, difference.text) == ("", str(Did("diverges", "unmoved")), "moves not")
    assert difference.cells == ("fsdp2/reentrant",) and difference.example == wrong.cell.id
    assert made.outcomes == {"ddp/off": "trains", "fsdp2/reentrant": "diverges"}
    # A mode that a model doesn't have is a dash on the page, which is explained below.
    modes, why = ("reentrant", "non-reentrant"), "ConvNext has no gradient checkpointing"
    rows = []
    for name in ("qwen2", "qwen2+lora"):
        cells = [entries.entry(cell(name, mode=mode), "impossible", detail=why) for mode in modes]
        rows.append(models_record.summary(QWEN, [entries.entry(cell(name)), *cells]))
    assert not rows[0].differences
    assert f"## What can't be run\n\n- qwen2 and qwen2 with LoRA: {why}" in models_page.page(rows)


def test_the_page_has_a_symbol_for_each_mode_and_links_known_failures():
    """Breaks when a symbol stands in another mode's place, or a cell that was not run looks like one that trains."""
    named = "zero_double_reduction", "raises (reduced-twice)", "reduced"
    known = Difference(*named, cell(strategy="zero2", mode="reentrant").id, ("zero2/reentrant",))
    example = cell(strategy="fsdp2").id
    new = Difference("", "hangs (no-progress)", "gradient of a_b*c differs <b>", example, ("ddp/off",))
    outcomes = dict.fromkeys(("ddp/off", "zero2/off", "zero2/non-reentrant"), "trains") | {"zero2/reentrant": "raises"}
    text = models_page.page([summary(outcomes=outcomes, differences=(known, new), transformers="5.23.0")])
    assert row("`qwen2`", "✓··", "✓✗✓") in text.splitlines()
    assert "[zero_double_reduction](../repros/zero_double_reduction/README.md), raises (reduced-twice). Under" in text
    new = "\n\n- gradient of a\\_b\\*c differs &lt;b>. Under ddp (off): qwen2.\n"
    assert new in text.partition("### Not in the catalogue")[2]
    assert "faultline check config.json --strategy fsdp2 --checkpointing off`" in text, "it has no file yet"


@pytest.mark.parametrize(
    ("did", "text", "shown"),
    [
        ("raises (other)", "E: short. And more", "E: short. And more"),
        ("raises (other)", f"E: first. {'second ' * 30}", "E: first."),
        ("raises (other)", "E: first. This was cut in a rec…", "E: first."),
        ("raises (other)", "word " * 60, "word " * 31 + "word…"),
        ("hangs (no-progress)", "still running after 9 s; rank 0: wait (a.py:3)", "still running after 9 s"),
    ],
)
def test_a_reason_is_whole_sentences(did, text, shown):
    """Breaks when a reason ends in the middle, or each place in which ranks hang is a line."""
    difference = Difference("", did, text, "models/qwen2/ddp/off/fp32/w2/cpu", ("ddp/off",))
    page = models_page.page([summary(differences=(difference,), outcomes={"ddp/off": did.partition(" ")[0]})])
    assert f"- {shown.rstrip('.')}. Under ddp: qwen2." in page


def test_a_record_replaces_the_same_model_on_the_same_stack_alone(files):
    """Breaks when a run of one model loses what was measured of the others, or on another stack."""
    order = ["qwen2", "llama"]
    models_record.record([summary("llama", outcomes={"ddp/off": "raises"}), summary()], "today", order)
    models_record.record([summary("llama", outcomes={"ddp/off": "trains"})], "transformers==4.57.1", order)
    models_record.record([summary("llama", outcomes={"ddp/off": "hangs"})], "today", order)
    records = [(each.stack, each.model, each.outcomes) for each in models_record.read()]
    there = [("today", "llama", {"ddp/off": "hangs"}), ("transformers==4.57.1", "llama", {"ddp/off": "trains"})]
    assert records == [("today", "qwen2", {}), *there]
    # A run of one strategy loses nothing of what was measured under all others, and mixes no releases.
    wrong = Difference("", "raises (other)", "", "", ("ddp/off", "fsdp2/off"))
    full = summary("llama", outcomes={"ddp/off": "raises", "fsdp2/off": "raises"}, differences=(wrong,))
    native = summary("llama", native=True, outcomes={"tp/off": "trains"}, transformers="5.24.0")
    assert not models_record.record([full, native], "today", order)
    assert not models_record.record([summary("llama", outcomes={"ddp/off": "trains"})], "today", order)
    [merged] = [each for each in models_record.of_today() if each.model == "llama"]
    assert merged.outcomes == {"ddp/off": "trains", "fsdp2/off": "raises"}
    assert [each.cells for each in merged.differences] == [("fsdp2/off",)] and native in models_record.read()
    narrowed = models_record.record([summary("llama", outcomes={}, transformers="5.24.0")], "today", order)
    assert [each.model for each in narrowed] == ["llama"] and merged in models_record.read()


def test_transformers_own_parallelism_is_a_funnel_and_a_table_of_what_does_not_train():
    """Breaks when a pair is counted twice or lost, or the same problem of several models stands in several lines."""

    def native(model, **changes):
        return summary(model, native=True, transformers="5.24.0", **changes)

    def ends(*outcomes):
        return dict(zip(("tp/off", "tp/off+accumulating", "ep-fsdp/off"), outcomes, strict=False))

    def wrong(name):
        return (Difference("", "diverges (differs)", f"gradient of model.layers.0.{name}.weight differs by 9 %", ""),)

    text = models_page.page(
        [
            native("llama", outcomes=ends("trains", "trains", "trains")),
            native("qwen3", outcomes=ends("trains", "diverges"), differences=wrong("k_norm")),
            native("gemma3", outcomes=ends("trains", "diverges"), differences=wrong("q_norm")),
            native("dots1", outcomes=ends("impossible"), refused="the config leaves out what Dots1 needs (TypeError)"),
        ]
    ).partition("## Under transformers' own parallelism")[2]
    assert "has plans for 5 pairs of a model type and a strategy (tp, ep-fsdp): 1 refused in one process" in text
    assert "1 reason, and 4 run. Of those, 0 raise, and 2 train otherwise" in text and "every cell: `llama`.\n" in text
    assert row("`qwen3`, `gemma3`", "✓≠", "", "gradients of q\\_norm and k\\_norm differ") in text
    assert (
        row(
            "`dots1`",
            models_page.SYMBOLS["impossible"] + models_page.ABSENT,
            "",
            "the config leaves out what its class needs",
        )
        in text
    )


def test_an_older_release_is_held_against_today():
    """Breaks when the page doesn't say since when a model fails or trains, or takes what was not run for a change."""

    def difference(*cells):
        return Difference("zero_double_reduction", "raises (reduced-twice)", "", cell(strategy="zero3").id, cells)

    def old(model="qwen2", **changes):
        return summary(model, stack="transformers==4.57.1", transformers="4.57.1", **changes)

    cells = {"zero2/off": "trains", "zero3/off": "raises", "zero3/reentrant": "trains"}
    fails = difference("zero3/off")
    now = [summary(name, outcomes=cells, differences=(fails,)) for name in ("qwen2", "llama", "gemma")]
    now.append(summary("clip", outcomes=cells))
    then = [
        old(outcomes=cells, differences=(difference("zero2/off", "zero3/off"),)),
        old("llama", outcomes=cells),
        old("gemma", outcomes={"zero2/off": "trains"}),
        old("clip", refused="no class of that name"),
    ]
    text = models_page.page([*now, *then]).partition("## On older releases")[2]
    line = "- [zero_double_reduction](../repros/zero_double_reduction/README.md), raises (reduced-twice). Under"
    assert "### transformers 4.57.1\n\n3 model types trained, in 7 cells." in text
    assert f"Gone since then:\n\n{line} zero2 (off): qwen2.\n\n" in text
    assert f"New since then:\n\n{line} zero3 (off): llama.\n\n" in text
    assert text.endswith("Not trained there:\n\n- clip: no class of that name")


@pytest.mark.slow
def test_every_model_runs_under_one_strategy_of_each_kind_with_and_without_an_adapter():
    """Breaks when a model type is listed and not run."""
    cells = models.cells_of(models.Request(), {})
    names = [*models.architectures()]
    assert {each.variant for each in cells} == {*names, *(f"{name}{models.ADAPTED}" for name in names)}
    assert {each.strategy for each in cells} == {"ddp", "zero2", "zero3", "fsdp1-full", "fsdp2"}
    narrowed = models.cells_of(models.Request(models=("qwen2",), selection=Selection(strategy=("ddp",))), {})
    assert {each.strategy for each in narrowed} == {"ddp"}
    with pytest.raises(UsageError, match="qwen2"):
        models.cells_of(models.Request(models=("qwen_2",)), {})
    # Under transformers' own parallelism those that have the plan, none with an adapter; elsewhere only the list's.
    selection = Selection(strategy=("tp", "ep-fsdp", "ddp"), checkpointing=("off",), precision=("fp32",))
    planned = {"mixtral": ("MixtralForCausalLM", ("tp", "ep")), "arcee": ("ArceeForCausalLM", ("tp",))}
    cells = models.cells_of(models.Request(selection=selection), planned)
    assert {(each.variant, each.strategy) for each in cells if each.strategy != "ddp"} == {
        *((f"mixtral{how}", strategy) for how in ("", "+accumulating") for strategy in ("tp", "ep-fsdp")),
        *((f"arcee{how}", "tp") for how in ("", "+accumulating")),
    }
    assert {each.variant for each in cells if each.strategy == "ddp"} == {*names, *(f"{name}+lora" for name in names)}


def test_the_committed_page_says_what_the_record_says():
    """Breaks when the page is an older record's, a line of it has no file, or a file shows what is gone."""
    page = models_page.PAGE.read_text(encoding="utf-8")
    assert models_page.page(models_record.read()) in page, "faultline prove models"
    assert {each.model for each in models_record.read() if not each.native} <= {*models.architectures()}
    examples = models_page.first_of_each(models_record.of_today()).values()
    assert {models_page.script(*pair) for pair in examples if pair[1].new} == {*models_page.SCRIPTS.glob("*.py")}


@pytest.mark.slow
@pytest.mark.parametrize("name", sampled((file.name for file in sorted(models_page.SCRIPTS.glob("*.py"))), 6))
def test_a_file_shows_its_difference_alone(name, tmp_path):
    """Breaks when what the page links to needs this repository, or shows nothing."""
    (tmp_path / name).write_text((models_page.SCRIPTS / name).read_text(encoding="utf-8"))
    done = subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.endswith("REPRODUCED\n"), done.stderr[-2000:]


@pytest.mark.slow
def test_a_model_type_is_run_for_real(files, asked):
    """Breaks when the tiny form of a config, or its batch, no longer trains."""
    models_page.PAGE.write_text("# Models\n\n<!-- measured: begin -->\n\n<!-- measured: end -->\n")
    code, out, _ = asked("prove", "models", "qwen2", "--strategy", "ddp", "--checkpointing", "off")
    assert code == 0 and "2 models trained in 2 cells, 0 refused; 0 with a difference" in out
    assert [each.outcomes for each in models_record.read()] == [{"ddp/off": "trains"}] * 2
