"""Every word that the output uses is explained, by the page or the record that defines it."""

import re

import pytest

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells import expected
from faultline.explain.command import meant
from faultline.explain.vocabulary import SIGNATURES, STRATEGIES, TERMS, vocabulary
from faultline.releases.changes import ChangeKind, Safety

WORDS = vocabulary()
GLOSSARY = (ROOT / "docs" / "glossary.md").read_text()


def test_every_word_is_explained():
    """Breaks when somebody meets a word in an answer that no page and no record explains."""
    rules = [rule for failure in failures().values() for rule in expected.rules(failure)]
    used = {
        TERMS: [*re.findall(r"^## (.+)$", GLOSSARY, re.M), "rank", "engine", "adapter", "trainer"],
        "Outcomes": Outcome,
        SIGNATURES: [
            *Signature,
            *(name for failure in failures().values() for name in failure.errors),
            *(name for rule in rules for name in rule.signature),
        ],
        STRATEGIES: strategies.names(),
        "Checkpointing modes": CHECKPOINTING,
        "Precisions": ["fp32", "bf16"],
        "Devices": ["cpu", "cuda"],
        "Lives": ["straight", "resumed", "resized"],
        "Verdicts": [
            *("verified", "refuted", "conditional", "untested", *Safety),
            *("expected", "unexpected failure", "unexpected pass", "changed"),
        ],
        "Answers of diagnose": ["one of several", "not in the catalogue"],
        "Kinds of change": ChangeKind,
    }
    kinds = {name: [word.kind for word in entries] for name, entries in WORDS.items()}
    words = [(str(word), kind) for kind, words in used.items() for word in words]
    assert [(word, kind) for word, kind in words if kind not in kinds.get(word, ())] == []
    assert [word for entries in WORDS.values() for word in entries if not word.text] == []


def test_a_signature_names_its_failures_and_the_error():
    [word] = WORDS["no-grad-fn"]
    assert word.text.startswith("RuntimeError: element 0 of tensors does not require grad")
    assert "grpo_lora_no_grad" in dict(word.facts) and word.command == "faultline show grpo_lora_no_grad"


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("raises (no-grad-fn)", "no-grad-fn"),
        ("raises:no-grad-fn", "no-grad-fn"),
        ("raises no-grad-fn", "no-grad-fn"),
        ("not safe", "NOT SAFE"),
        ("Checkpointing mode", "checkpointing mode"),
        ("ZeRO-3", "zero3"),
        ("unexpected failure", "unexpected failure"),
    ],
)
def test_a_word_is_known_as_the_output_writes_it(text, word):
    assert meant(text, WORDS) == word


def test_a_slip_is_answered_with_what_was_meant(asked):
    slip = ["faultline: unknown failure or word 'conditonal'; did you mean conditional?"]
    assert asked("show", "conditonal") == (2, "", slip)
    failure = failures()["zero3_dummy_loss"]
    assert asked("show", failure.id)[1].splitlines()[0] == failure.title
    for command in (["list", "--ids", "--failure"], ["list", "--symptoms", "--failure"]):
        assert asked(*command, failure.id)[:2] == asked(*command, failure.name)[:2], "each command takes an id"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_word_is_broken_at_any_width(asked, monkeypatch, width):
    for name, value in {"COLUMNS": str(width), "TTY_COMPATIBLE": "1", "TERM": "xterm"}.items():
        monkeypatch.setenv(name, value)
    code, out, _ = asked("show")
    out = re.sub(r"\x1b\[[0-9;]*m", "", out)
    listed = {word for line in out.splitlines() for word in re.split(r", ?| {2,}", line)}
    assert code == 0 and {*strategies.names(), *Outcome, *Signature} <= listed
    assert max(map(len, out.splitlines())) <= width
    assert "`zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu`" in asked("show", "cell")[1]
