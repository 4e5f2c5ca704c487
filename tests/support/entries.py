"""Results of a run and their failure as the tests of reports make them up, hostile ones among them."""

from dataclasses import replace

from faultline.catalogue import Claim, Failure, History, Variant
from faultline.cells.cell import Cell
from faultline.cells.expected import Expectation
from faultline.ranks.report import Report
from faultline.runs import results, storage
from faultline.runs.nodes import Ended, RankEnd
from faultline.runs.oracle import Judgement
from faultline.runs.results import Deviation, RankError, RankResult

EVIL = (
    "</script><img src=x onerror=alert(1)>\u2028\u2029& [red]markup[/red] [link=file:///x]x[/link] "
    "\"'><script>window.pwned = 1; alert(2)</script><svg onload=alert(3)></pre></details></dialog>"
    '{"a": "</SCRIPT ><b>"} ${alert(4)} `code` &lt;i&gt; <a href=javascript:x> <iframe src=//example.org> '
    "<!-- 語 \U0001f600 e\u0301 \x1b[31mred\x1b[2J\x1b]0;title\x07\x9b5m\x00\x08\x7f\ud800\ufffe \u202eevil\u202c ]]>"
)
FAILURE = Failure(
    title="A `failure` for these tests",
    history=History(records=("https://example.org/1",)),
    since="always",
    until="never",
    errors={"torn": r"torn [a-z]+"},
    variants=(Variant("broken"), Variant("mended"), Variant("broken", trainer="sft", strategies=("ddp",))),
    claims={
        "a": Claim("mend `it`", swap={"remedy": "mended"}, source="https://example.org/a"),
        "b": Claim("pray", kind="trains", source="https://example.org/b"),
    },
    name="example",
)


RANK = RankResult(0, losses=(1.5,), steps=3)


def entry(cell, outcome="trains", signature="", verdict="expected", **changes):
    """The result of a cell that nobody ran."""
    judged = Judgement(outcome, signature)
    usual = results.result(cell, judged, Ended([]), {"torch": "2.13.0"}, Expectation(), verdict)
    return replace(usual, **{"seconds": 0.25, "ranks": (RANK,)} | changes)


def result(variant="broken", strategy="ddp", outcome="trains", signature="", verdict="expected", **changes):
    axes = {"checkpointing": "off", "precision": "fp32", "world_size": 1 if strategy == "single" else 2}
    axes |= {axis: changes.pop(axis) for axis in (*axes, "device") if axis in changes}
    changes = {"evidence": {"wrapper": "Engine", "second": {"bytes_held": 1}}} | changes
    return entry(Cell("example", variant, strategy, **axes), outcome, signature, verdict, **changes)


def broken(**changes):
    usual = {"outcome": "raises", "signature": "torn", "verdict": "unexpected failure", "detail": "Torn: apart"}
    return result(**(usual | changes))


def evil():
    """A result with hostile text wherever a text can be."""
    rank = RankResult(0, -6, RankError(EVIL, EVIL, EVIL), {}, (float("nan"), float("-inf")), 1, 1, (), EVIL, EVIL)
    texts = dict.fromkeys(("outcome", "signature", "verdict", "detail", "worst_parameter"), EVIL)
    texts |= {"stack": {EVIL: EVIL}, "evidence": {EVIL: {EVIL: EVIL, "nan": float("nan")}}}
    numbers = {"errors": (Deviation(EVIL, "gradients", 1, 0, float("inf")),), "relative_error": float("nan")}
    expected = Expectation(EVIL, (EVIL,), f"javascript:{EVIL}")
    return replace(broken(), cell=Cell(EVIL, EVIL, EVIL), expected=expected, ranks=(rank,), **texts, **numbers)


def played(folder, cells, judged, *others):
    """As if cells had run into a folder and all had done this; others are told each result too."""
    writer = storage.Writer(folder)
    for cell in cells:
        one = results.result(cell, judged, Ended([RankEnd(Report())]), {"trl": "1.0"}, Expectation(), "expected")
        for add in (writer.add, *others):
            add(one)
    writer.close()
