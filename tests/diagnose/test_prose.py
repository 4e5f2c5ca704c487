"""Reports in words: the failures that they may be about, and none for what only uses the same words."""

import os
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.base.paths import OBSERVATIONS, ROOT
from faultline.catalogue.loading import failures, symptoms
from faultline.diagnose import prose
from faultline.diagnose.command import DiagnoseRequest, answer
from faultline.maintain import score_reports
from faultline.observations.matching import Hints

EVERY = [(name, text) for name in failures() for each in symptoms(name).symptom for text in (each.text, each.zh)]


def names(text):
    return [each.failure.name for each in prose.candidates(text, Hints())]


def test_every_failure_has_symptoms_in_both_languages():
    """Breaks when a failure can't be found from words."""
    assert not [name for name in failures() if len(symptoms(name).symptom) < 2]
    asked = {term for name in failures() for group in (*symptoms(name).together, *symptoms(name).anywhere)
             for term in group.split("|")}  # fmt: skip
    assert asked <= {term for term, _ in prose.vocabulary()}, "a symptom asks for a term that terms.toml lacks"


def test_a_symptom_by_itself_is_found():
    """Breaks when what a failure's folder says people see leads to another failure, in either language."""
    lost = [text for name, text in EVERY if name not in names(text)]
    assert len(lost) <= len(EVERY) // 50, lost


def test_the_weights_are_those_of_today():
    """Breaks when terms.toml or a symptom was changed: `faultline maintain readmes` writes the weights."""
    assert (OBSERVATIONS / prose.WEIGHTS).read_bytes() == prose.written_weights()


@pytest.mark.parametrize(
    "text",
    [
        "What is a good learning rate for LoRA on a 7B model? I use Adam and a cosine schedule.",
        "pip install deepspeed fails with a compiler error on Windows, nvcc isn't found.",
        "How can I reduce memory? CUDA out of memory when I train a 13B model on one 24 GB GPU.",
        "The tokenizer adds a blank before each special token after loading, so decoding differs.",
        "训练 7B 模型学习率设多少合适",
        "moved from one machine to another with the same docker image, deepspeed.initialize never returns, no error",
        "",
        "\n\n",
    ],
)
def test_a_question_gets_no_candidate(text):
    """Breaks when the field's words alone are enough for a failure."""
    assert not names(text)


@settings(max_examples=50, deadline=None)
@given(
    st.permutations(["words", "of the field", "loss", "ZeRO-3", "saved", "443 bytes", "rank", "保存", "nan"]),
    st.integers(1, 400),
)
def test_any_text_is_answered(words, times):
    """Breaks when a text, however long or odd, raises, or gets more than three candidates."""
    assert len(prose.candidates(" ".join(words) * times, Hints())) <= prose.MOST


@pytest.mark.slow
def test_an_answer_is_the_same_in_each_process():
    """Breaks when the order of a set, which the hash seed decides, says which of two sentences is shown."""
    text = "# torch.distributed.checkpoint: loaded optimizer has no state\\nIt is FSDP, one node."
    ask = f"from faultline.diagnose import prose; print(prose.candidates('{text}', prose.Hints()))"
    by_seed = {
        subprocess.check_output([sys.executable, "-c", ask], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": seed})
        for seed in ("1", "3")
    }
    assert len(by_seed) == 1


def test_words_are_never_a_name():
    """Breaks when words alone name a failure, or give an exit code of a name."""
    result = answer(DiagnoseRequest(text=EVERY[0][1]))
    assert result.answer == "not in the catalogue" and not result.failure
    assert result.as_json()["candidates"][0]["failure"] == EVERY[0][0] and "words prove nothing" in str(result)


def test_of_a_log_only_what_somebody_wrote_counts():
    """Breaks when lines of programs are taken for a report."""
    text = "\n".join(f"2026-01-01 10:00:00,000 INFO saved adapter ZeRO-3 443 bytes {n}" for n in range(5))
    assert not answer(DiagnoseRequest(text=text)).diagnosis.by_words


def test_no_report_gets_a_wrong_name_and_few_others_get_a_candidate():
    """Breaks when a report of fixtures/ is named wrongly, fewer are found, or others get a candidate."""
    answers = {name: score_reports.answered(name) for name in score_reports.reports()}
    named = {name: stated.removesuffix(score_reports.NAMED) for name, stated in answers.items() if stated.endswith(")")}
    assert all(stated in score_reports.reports()[name].failures for name, stated in named.items())
    by_kind = {"known": [], "beyond": []}
    for name, report in score_reports.reports().items():
        by_kind.setdefault(report.kind, []).append(answers[name].removesuffix(score_reports.NAMED).split(" or "))
    known = [each.failures for each in score_reports.reports().values() if each.kind == "known"]
    right = [bool(wanted & {*given}) for wanted, given in zip(known, by_kind["known"], strict=True)]
    assert sum(right) >= 0.85 * len(right)
    others = by_kind["beyond"]  # 95 % is the aim: two of the fourth round's were written to look like failures
    assert sum(given == [""] for given in others) >= 0.85 * len(others)
