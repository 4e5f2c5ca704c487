"""Of a text without an error the entrance says what `faultline diagnose` says: nothing learned, nan, equal losses."""

import itertools
import json
from random import Random

import pytest

import faultline
from faultline.base.paths import ROOT
from faultline.diagnose.view import NEXT
from faultline.site import answers, build

STEP = "{{'loss': {}, 'grad_norm': {}, 'epoch': 0.1}}"
STEPS = [STEP.format(loss, norm) for loss in ("2.3", "'0.0'", "nan") for norm in ("0.0", "'0'", "nan", "1.5", "1e-08")]
WARNING = "x.py:92: UserWarning: None of the inputs have requires_grad=True. Gradients will be None"
REWARDS = [f"{{'loss': 0.0, 'grad_norm': 0.0, 'reward_std': {std}}}" for std in ("0.0", "0.05")]
RANKS = [f"{prefix} loss: 2.{step}" for step in range(4) for prefix in ("[rank0]:", "[rank1]:", "0:", "[default1]:")]
SETTINGS = ["fsdp_version: 2", "zero_stage: 3", "distributed_type: MULTI_GPU", "max_grad_norm: 0.0", "grad_norm: 0.1.2"]
LINES = [*STEPS, *REWARDS, *RANKS, *SETTINGS, WARNING, "Traceback (most recent call last):", "loss: nan", "", "10%|#"]


def texts():
    """Runs that go wrong in each way, near misses, and lines mixed at random, the same each time."""
    fine, lost, flat = STEP.format(2.3, 1.5), STEP.format(0.0, "nan"), STEP.format(2.3, "0.0")
    yield from ("\n".join(some) for some in ([flat] * 5, [flat] * 2, [fine, *[lost] * 3], [fine, lost, lost, fine]))
    yield from ("\n".join([setting, *[flat] * 4]) for setting in (*SETTINGS, WARNING))
    yield from ("\n".join(RANKS), "\n".join(RANKS[:-1]), "\n".join(["[rank0]: loss: 0.0", "[rank1]: loss: 0.0"] * 4))
    random = Random(7)
    for size in [3, 4, 5, 6, 9] * 40:
        few = random.sample(LINES, random.randint(1, 4))
        yield "\n".join(random.choice(few) for _ in range(size))
    for file in sorted((ROOT / "fixtures").glob("*/*.log")):
        yield file.read_text("utf-8")


def by_command(text):
    """What the command says of a text without an error; None where it has one, or nothing to read."""
    if not text.strip():
        return None
    answer = faultline.diagnose(f"{text}\n").diagnosis
    if answer.cause:
        return None
    silence = answer.silence and {
        key: getattr(answer.silence, key) for key in ("norm", "steps", "failures", "earlier", "after", "figure")
    }
    return {
        "silence": silence and {**silence, "norm": sorted(silence["norm"].split(" or "))},
        "same": answer.same and {"ranks": [*answer.same.ranks], "steps": answer.same.steps},
        "warned": [[each.failure, [*each.strategies]] for each in answer.warned],
        "cut": bool(answer.cut),
    }


@pytest.mark.slow
def test_the_entrance_and_the_command_see_the_same_silence(chromium):
    """Breaks when somebody who pastes a run that learns nothing hears that it is not in the catalogue."""
    page = chromium.new_page()
    page.add_script_tag(content=f"window.FAULTLINE = {json.dumps({'answers': answers.data()})}")
    for name in ("silent.js", "diagnose.js"):
        page.add_script_tag(content=(build.HERE / "theme" / name).read_text("utf-8"))
    asked = {text: wanted for text in texts() if (wanted := by_command(text))}
    got = page.evaluate("texts => texts.map(each => FAULTLINE.diagnose(each))", [*asked])
    page.close()
    differing = []
    for (text, wanted), shown in zip(asked.items(), got, strict=True):
        silence = shown.get("silence")
        made = {
            "silence": silence and {**silence, "norm": sorted(silence["norm"].split(" or "))},
            "same": shown.get("same"),
            "warned": [[each["failure"], each["strategies"]] for each in shown.get("warned", ())],
            "cut": shown.get("cut"),
        }
        if made != wanted:
            differing.append((text[:400], wanted, made))
    assert len(asked) > 150
    for kind in ("silence", "same", "warned", "cut"):
        assert {bool(wanted[kind]) for wanted in asked.values()} == {True, False}, f"{kind} is never told apart"
    assert not differing[:3], "the command says the first, the entrance the second"


@pytest.mark.slow
def test_a_pasted_log_without_an_error_is_answered(page, site):
    page.goto((site / "index.html").as_uri())
    said, shown = page.locator("#count"), page.locator(".card:visible")
    page.fill("#error", "\n".join([STEP.format(2.3, "0.0")] * 5))
    assert "grad_norm is 0 in every step that it logs: 5 steps" in said.inner_text()
    assert "Not in the catalogue" not in said.inner_text() and shown.count() > 3
    assert "parameters unmoved" in page.locator(".card:visible .why").first.inner_text()
    page.fill("#error", "\n".join([STEP.format(2.3, 1.5), *[STEP.format(0.0, "nan")] * 4]))
    assert "grad_norm is nan after 1 step that had a number" in said.inner_text()
    page.fill(
        "#error", "\n".join(f"[rank{rank}]: loss: 2.{step}" for step, rank in itertools.product(range(4), (0, 1)))
    )
    assert "2 ranks log the same losses" in said.inner_text()
    page.fill("#error", "Loading\nTraceback (most recent call last):\n  File 'x.py', line 3, in <module>")
    assert "its last line names the error: paste that too" in said.inner_text()
    page.fill("#error", WARNING)
    assert "It is that failure if" in page.locator(".card:visible .why").inner_text()
    assert not page.locator("#next").is_visible()
    page.fill("#error", "Loading the model\nEpoch 1 of 3 begins now and all is fine, says the log\n")
    assert all(label in page.inner_text("#next") for label in NEXT) and not shown.count()
