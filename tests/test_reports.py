"""Upstream reports: what each is for has to run in its file, and what it tells of remedies was tried on its cell."""

import argparse
import ast
import re

import pytest

from faultline import catalogue
from faultline.catalogue import failures
from faultline.errors import UsageError
from faultline.export import facts, issue, reports
from faultline.matrix import Cell

PACKAGES = {"pytorch": "torch"}  # where it isn't the repository's name
# Every file takes its model from transformers: what is for transformers has to run what else it is about.
OWN = re.compile(r"\w*Trainer\(|\.save_pretrained\(")
ADDRESSED = [name for name, failure in failures().items() if failure.upstream and reports.telling(failure)]


def file_of(name):
    report = (catalogue.REPROS / name / reports.REPORT).read_text(encoding="utf-8")
    return re.search(r"```python\n(.*?)\n```", report, re.DOTALL)[1]


@pytest.mark.parametrize("name", ADDRESSED)
def test_a_report_runs_the_library_that_it_is_for(name):
    """Breaks when maintainers are sent a file in which their library has no part."""
    text, (_, repository) = file_of(name), failures()[name].upstream.lower().split("/")
    tree = [*ast.walk(ast.parse(text))]
    imported = {alias.name for node in tree if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module for node in tree if isinstance(node, ast.ImportFrom)}
    assert PACKAGES.get(repository, repository) in {module.partition(".")[0] for module in imported}
    assert repository != "transformers" or OWN.search(text), "it only has its model from transformers"


@pytest.mark.parametrize(
    ("cell", "told"),
    [
        (
            "ddp_peft_reentrant_ready_twice/sft-default_broken/ddp-find-unused/reentrant/fp32/w2/cpu",
            {"a": "yes", "f": "yes"},  # with its defaults the trainer runs nowhere else: b to e have no cell
        ),
        (
            "ddp_peft_reentrant_ready_twice/broken/ddp-find-unused/reentrant/fp32/w2/cpu",
            {"a": "yes", "b": "yes", "c": "yes", "e": "yes"},
        ),
        ("deepspeed_gradient_clipping_omitted/broken/zero3/off/bf16/w2/cpu", {"b": "yes"}),
        ("fsdp2_method_or_child_outside_root_forward/sft-head_broken/fsdp2/off/fp32/w2/cpu", {"g": "yes", "e": "no"}),
    ],
)
def test_a_report_tells_of_the_remedies_that_are_about_its_cell(cell, told):
    """Breaks when maintainers read that something helps, or doesn't, which was measured on another form of it."""
    where = facts.place(Cell.parse(cell))
    assert dict(issue.tried(where)) == {issue.prose(where.failure.claims[key].text): word for key, word in told.items()}


def test_every_report_tells_of_what_was_tried():
    """Breaks when a report's cell is one on which nothing was tried."""
    for failure in failures().values():
        cell = reports.telling(failure)
        assert cell is None or issue.tried(facts.place(cell)), failure.name


def test_a_name_that_matches_no_failure_is_refused():
    """Breaks when a slip of the pen ends as if every report had been written, and none was."""
    with pytest.raises(UsageError, match="did you mean zero_double_reduction"):
        reports.command(argparse.Namespace(failure="zero_double_reductoin"))
