"""READMEs: the measured part is made from a run, and nothing else is touched; the catalogue's table and figures."""

import random
import re
from dataclasses import replace

import pytest

from faultline import strategies
from faultline.base import markdown
from faultline.base.axes import CHECKPOINTING
from faultline.base.errors import UsageError
from faultline.catalogue import REMEDIES, Claim
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Did
from faultline.cells.cell import MARGIN, TOLERANCE, Cell
from faultline.maintain import on_gpus, readmes
from faultline.observations import measured, symptoms
from faultline.observations.remedies import recorded_verdict
from faultline.runs.results import Deviation, Rounding
from tests.support import entries

CLAIMS = {"a": Claim("mend it with `a | b`", swap={"remedy": "mended"}), "b": Claim("pray", kind="trains")}
FAILURE = replace(entries.FAILURE, claims=CLAIMS)
ZERO3 = [name for name in strategies.names() if name.startswith("zero3")]


def result(variant, strategy, mode, outcome="trains", signature="", precision="fp32", world=0, device="cpu", **changes):
    world = world or (1 if strategy == "single" else 2)
    cell = Cell("example", variant, strategy, mode, precision, world, device)
    return entries.entry(cell, outcome, signature, **changes)


NOTHING_ROUNDED = Rounding()


def run():
    """ZeRO-3 tears with reentrant checkpointing; mending helps, but not under zero3-offload."""
    results = [result("sft-broken", "ddp", mode) for mode in CHECKPOINTING]
    for strategy in strategies.names():
        for mode in CHECKPOINTING:
            torn = strategy in ZERO3 and mode == "reentrant"
            answer = ("raises", "torn") if torn else ("trains", "")
            results.append(result("broken", strategy, mode, *answer))
            results.append(result("mended", strategy, mode, *(answer if strategy == "zero3-offload" else ["trains"])))
    return results


def rewrite(file, results):
    return markdown.put(file, lambda: readmes.measured_part(FAILURE, results))


BEFORE = f"# Title\n\nbefore ✓; write `{markdown.BEGIN}` and `{markdown.END}`.\n\n"
PAGE = f"{BEFORE}{markdown.BEGIN}\nold\n{markdown.END}\n\nafter\n"


def test_only_what_stands_between_the_markers_changes(write):
    """Breaks when a README loses what somebody wrote, can't explain its lines, or depends on who came first."""
    file, results = write(PAGE), run()
    assert rewrite(file, results) == f"{file}: rewritten"
    text = file.read_text(encoding="utf-8")
    assert text.startswith(f"{BEFORE}{markdown.BEGIN}\n") and text.endswith(f"{markdown.END}\n\nafter\n")
    assert "old" not in text
    for seed in range(3):
        random.Random(seed).shuffle(results)
        assert rewrite(file, results) == f"{file}: unchanged"
    assert file.read_text(encoding="utf-8") == text


def test_a_readme_without_its_two_markers_or_a_run_of_it_is_left_alone(tmp_path, write):
    begin, end = markdown.BEGIN, markdown.END
    for text in ("", begin, end, f"{end}{begin}", PAGE + end, PAGE + PAGE):
        file = write(text)
        with pytest.raises(UsageError, match="measured: begin"):
            rewrite(file, run())
        assert file.read_text(encoding="utf-8") == text
    with pytest.raises(UsageError, match="can't be read"):
        rewrite(tmp_path / "README.md", run())
    with pytest.raises(UsageError, match="no cell of example"):
        rewrite(write(PAGE), [])


def test_strategies_that_do_the_same_share_a_line():
    lines = readmes.measured_part(FAILURE, run()).splitlines()
    others = "single, `ddp*`, `zero0*`, `zero1*`, `zero2*`, fsdp1-full, fsdp1-grad-op, fsdp1-no-shard,"
    others += " fsdp2, fsdp2-no-reshard, `tp*`, ep-fsdp, native-fsdp"
    zero3 = "zero3, `zero3-offload*`, zero3-small"  # strategies of four ranks are not in the run
    assert lines[0] == "Measured with torch 2.13.0, on the CPU with gloo, in fp32 on 2 ranks (`single`: one process)."
    assert lines[2:8] == [
        "| variant | strategies | checkpointing | outcome |",
        "| --- | --- | --- | --- |",
        f"| `broken` | {others} | any | trains |",
        f"| `broken` | {zero3} | off, non-reentrant | trains |",
        f"| `broken` | {zero3} | reentrant | raises `torn` |",
        "| `sft-broken` | ddp | any | trains |",
    ]


@pytest.mark.parametrize("modes", [("off",), ("off", "reentrant")], ids=", ".join)
def test_modes_that_were_not_run_are_not_any(modes):
    """Breaks when a variant that runs in some modes only is said to do the same in all of them."""
    ran = [each for each in run() if each.cell.variant == "broken" or each.cell.checkpointing in modes]
    lines = readmes.measured_part(FAILURE, ran).splitlines()
    assert f"| `sft-broken` | ddp | {', '.join(modes)} | trains |" in lines
    assert sum("| any |" in line for line in lines) == 1, "what ran in all modes isn't told so any more"


def test_claims_are_told_with_counts_and_with_where_they_fail():
    text = readmes.measured_part(FAILURE, run())
    few = len(ZERO3) - 1
    shown = f"conditional | {few} of {few + 1} cells; raises (torn) under zero3-offload |"
    assert rf"| a | mend it with `a \| b` | {shown}" in text
    assert re.search(r"raises \(torn\) under [^|]*zero3-small[^|]* \(reentrant\) in broken", text)
    alone = readmes.measured_part(FAILURE, [result("mended", "ddp", "off")])
    assert "| b | pray | untested | no cell could tell |" in alone
    # Other precisions and world sizes are a line of their own.
    same = [result("broken", "ddp", "off", precision="bf16"), result("broken", "ddp", "off", world=4)]
    assert "The same outcomes with 4 ranks or bf16, wherever" in readmes.measured_part(FAILURE, run() + same)
    differs = [result("broken", "zero3", "off", "diverges", "nan", precision="bf16")]
    text = readmes.measured_part(FAILURE, run() + same + differs)
    assert "Different outside of that table: with bf16, zero3: diverges `nan` rather than trains." in text
    assert "4 ranks" not in text
    usual = readmes.measured_part(FAILURE, run())
    assert "Different" not in usual and "same" not in usual


def test_what_the_tolerances_rest_on_comes_from_the_run():
    """Breaks when a number of that table is not the run's, or errors that rounding excuses pass for small ones."""

    def off(error, rounding=NOTHING_ROUNDED, **changes):
        return result("broken", "ddp", "off", relative_error=error, rounding=rounding, **changes)

    noisy = [Rounding(n, Deviation("b", "weights", 1, 0, size), n) for n, size in ((2, 1.5), (3, "inf"))]
    sick = off("inf", replace(noisy[1], count=50), outcome="diverges", signature="differs")
    apart = off(1e-7, outcome="diverges", signature="buffers-apart")  # and its weights are right
    healthy = [off(1e-6), off(3e-5, noisy[0]), off(2e-5, noisy[1])]
    lines = readmes.noise([*healthy, sick, apart, off(None, outcome="raises")])
    tolerance, margin = TOLERANCE["fp32"], MARGIN["fp32"]
    [line] = lines.splitlines()[2:]
    assert line == f"| fp32 | 3 | 2.0e-05 | 3.0e-05 | {tolerance:g} | inf | 5 | inf | 3.0 | {margin:g} |"
    quiet = readmes.noise([off(0.01, precision="bf16")]).splitlines()[2]
    assert quiet.startswith("| bf16 | 1 | 1.0e-02 |") and "| none | 0 | none | none |" in quiet


def test_a_gpu_next_to_the_cpu_does_not_mix_with_it_and_hostile_text_stays_in_its_table_cell():
    on_gpu = [result("broken", "ddp", mode, "hangs", "no-progress", device="cuda") for mode in CHECKPOINTING]
    assert "hangs" not in readmes.measured_part(FAILURE, run() + on_gpu)
    assert "on a GPU" in readmes.measured_part(FAILURE, on_gpu)
    hostile = result("broken", "ddp", "off", "raises", "x | y\n| <img> \x1b[31m| z")
    lines = readmes.measured_part(FAILURE, [hostile]).splitlines()
    assert r"| `broken` | ddp | off | raises `x \| y \| <img> \| z` |" in lines


def between(file, markers):
    """What stands between two markers of a file."""
    begin, end = markers
    return file.read_text(encoding="utf-8").partition(begin)[2].partition(end)[0].strip()


def test_the_catalogue_and_the_readme_say_what_the_rules_say():
    """Breaks when a page is of older rules, its table is too wide to read, or a sentence leaves a verdict out."""
    assert between(readmes.CATALOGUE, readmes.FAILURES) == readmes.table(), "faultline maintain readmes"
    assert between(readmes.README, readmes.COUNTS) == readmes.counts(), "faultline maintain readmes"
    assert between(readmes.MATRIX, readmes.STRATEGIES) == readmes.families(), "faultline maintain readmes"
    assert between(readmes.CI, readmes.GPUS) == on_gpus.table(), "faultline maintain readmes"
    assert max(map(len, readmes.table().splitlines())) <= 470
    numbers = [int(word) for word in readmes.counts().replace(":", "").split() if word.isdigit()]
    assert numbers[0] == len(failures()) and numbers[1] == sum(numbers[2:]) > 100
    # A silent failure doesn't look like an error, nor a refuted remedy like one that helps.
    lines = {row.split("](")[0][3:]: row.strip("| ").split(" | ") for row in readmes.table().splitlines()[2:]}
    assert [*lines] == [*failures()]
    nowhere = [each.name for each in failures().values() if not symptoms.endings(each) and not each.reported]
    assert not nowhere, "a record that no stack here shows is listed like the others"
    _, _, where, fixed, helps, _ = lines["zero12_manual_ga_keeps_last_microbatch"]
    assert (where, fixed) == ("silent: `zero1*`, `zero2*`", "not fixed")
    assert helps.startswith("`engine.set_gradient_accumulation_boundary(last)`")
    assert lines["grpo_lora_no_grad"][3] == "trl 0.20.0"
    assert lines["rank0_only_save"][4] == "in some places: save on all ranks"


@pytest.mark.parametrize("name", list(failures()))
def test_the_first_remedy_is_a_verified_one_if_there_is_one(name):
    """Breaks when the table recommends what was refuted, or what helps only in places before what always helps."""
    failure = failures()[name]
    remedies = [claim for claim in failure.claims.values() if claim.kind in REMEDIES]
    words = {claim.text: recorded_verdict(failure, claim).word for claim in remedies}
    first = readmes._line(failure)[4]
    if "verified" in words.values():
        assert words[first] == "verified"
    elif "conditional" in words.values():
        assert words[first.removeprefix("in some places: ")] == "conditional" and first not in words
    else:
        assert first == ""


def test_what_the_broken_cell_has_already_does_not_help(monkeypatch):
    """Breaks when a useless remedy, or a claim that is no remedy, counts as help."""
    failure = replace(
        failures()["zero2_ga_wrong_gradient"],
        claims={
            "a": Claim("wear a hat", kind="present"),
            "b": Claim("it fails", kind="fails"),
            "c": Claim("it trains under DDP", kind="trains", where={"strategy": "ddp"}),
        },
    )
    shown = {Cell(failure.name, "broken", "zero2"): Did("diverges", "differs")}
    trains = {Cell(failure.name, "broken", "ddp"): Did("trains")}
    monkeypatch.setattr(measured, "outcomes", lambda failure, stack="today": shown | trains)
    assert readmes._line(failure)[4] == ""
    monkeypatch.setattr(readmes, "failures", lambda: {failure.name: failure})
    assert readmes.counts() == "1 failures and 3 claims: 1 verified, 1 refuted, 1 conditional."
