"""A remedy that no code asks for is no refuted one: its cells prove nothing."""

import ast

import pytest

from faultline.base.errors import UsageError
from faultline.base.paths import REPROS
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.maintain.bless import refuse
from faultline.ranks.run import Remedy
from faultline.runs.results import RankResult
from tests.support import entries


@pytest.mark.parametrize(
    ("ask", "read"),
    [
        (lambda remedy: remedy == "clipped", True),
        (lambda remedy: remedy != "broken", True),
        (lambda remedy: remedy in {"clipped"}, True),
        (lambda remedy: {"clipped": 1}.get(remedy), True),
        (lambda remedy: remedy.startswith("clip"), True),
        (lambda remedy: "clip" in remedy, True),
        (lambda remedy: remedy.split("_"), True),
        (lambda remedy: not remedy.endswith("broken"), True),
        (lambda remedy: remedy == "times_world_size", False),
        (lambda remedy: remedy.startswith(("own", "two")), False),
        (lambda remedy: "times" in remedy, False),
        (lambda remedy: None, False),
    ],
)
def test_a_remedy_is_read_where_code_does_for_it_what_it_does_not_for_broken(ask, read):
    """Breaks when a remedy counts as tried whose name the scenario never asks for."""
    remedy = Remedy("clipped")
    assert remedy.read is False
    ask(remedy)
    assert remedy.read is read
    assert str(remedy) == "clipped" and remedy == "clipped" and not remedy.is_broken and Remedy("broken").is_broken


def test_what_no_code_asks_for_can_not_be_blessed():
    """Breaks when a remedy that was never applied is recorded as refuted; one rank of one cell does for all."""

    def results(*read):
        cells = [Cell("example", "clipped", "ddp", world_size=number) for number in range(len(read))]
        ranks = [RankResult(0, evidence={} if each is None else {"remedy_read": each}) for each in read]
        return [entries.entry(cell, ranks=(rank,)) for cell, rank in zip(cells, ranks, strict=True)]

    with pytest.raises(UsageError, match="can't bless example/clipped: its code never asks for that remedy"):
        refuse(results(False, False, None), finished=True)
    for read in ((True, False), (None, None), ()):
        refuse(results(*read), finished=True)


def test_each_remedy_is_a_word_of_its_failures_code():
    """Breaks when a failure claims a remedy that its code lacks, before anybody runs it."""
    for failure in failures().values():
        tree = ast.parse((REPROS / failure.name / "failure.py").read_text())
        code = [node for node in tree.body if not (isinstance(node, ast.Assign) and "FAILURE" in ast.unparse(node)[:7])]
        nodes = [node for each in code for node in ast.walk(each)]
        words = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        words = {word for text in words for word in text.split()} | {n.arg for n in nodes if isinstance(n, ast.keyword)}
        remedies = {variant.remedy for variant in failure.variants} - {"broken"}
        unread = [each for each in remedies if not any(word and word in each for word in words - {"broken", None})]
        assert not unread, f"{failure.name}: no code for {unread}"
