"""Results of a run and their failure as the tests of reports make them up, hostile ones among them."""

from faultline.catalogue import Claim, Failure, Variant
from faultline.matrix import Cell

EVIL = (
    "</script><img src=x onerror=alert(1)>\u2028\u2029& [red]markup[/red] [link=file:///x]x[/link] "
    "\"'><script>window.pwned = 1; alert(2)</script><svg onload=alert(3)></pre></details></dialog>"
    '{"a": "</SCRIPT ><b>"} ${alert(4)} `code` &lt;i&gt; <a href=javascript:x> <iframe src=//example.org> '
    "<!-- 語 \U0001f600 e\u0301 \x1b[31mred\x1b[2J\x1b]0;title\x07\x9b5m\x00\x08\x7f\ud800\ufffe \u202eevil\u202c ]]>"
)
FAILURE = Failure(
    title="A `failure` for these tests",
    records=("https://example.org/1",),
    since="always",
    until="never",
    signatures={"torn": r"torn [a-z]+"},
    variants=(Variant("broken"), Variant("mended"), Variant("broken", trainer="sft", strategies=("ddp",))),
    claims={
        "a": Claim("mend `it`", swap={"remedy": "mended"}, source="https://example.org/a"),
        "b": Claim("pray", kind="trains", source="https://example.org/b"),
    },
    name="example",
)


def result(variant="broken", strategy="ddp", outcome="trains", signature="", verdict="expected", **changes):
    axes = {"checkpointing": "off", "precision": "fp32", "world_size": 1 if strategy == "single" else 2}
    cell = Cell("example", variant, strategy, **(axes | {k: changes.pop(k) for k in axes if k in changes}))
    rank = {"rank": 0, "exit": None, "error": None, "losses": [1.5], "steps": 3, "bad": 0, "digests": []}
    return {
        "id": cell.id,
        **vars(cell),
        "stack": "torch 2.13.0",
        "outcome": outcome,
        "signature": signature,
        "detail": "",
        "worst_parameter": "",
        "relative_error": None,
        "expected": {"outcome": "trains", "signatures": [], "record": ""},
        "verdict": verdict,
        "seconds": 0.25,
        "evidence": {"wrapper": "Engine", "second": {"bytes_held": 1}},
        "errors": [],
        "ranks": [rank | {"stack": "", "log": ""}],
    } | changes


def broken(**changes):
    told = {"outcome": "raises", "signature": "torn", "verdict": "unexpected failure", "detail": "Torn: apart"}
    return result(**(told | changes))


def evil():
    """A result with hostile text wherever a text can be."""
    error = {"type": EVIL, "message": EVIL, "traceback": EVIL}
    entry = broken(detail=EVIL, worst_parameter=EVIL, evidence={EVIL: {EVIL: EVIL, "nan": float("nan")}})
    entry |= {"id": f"{EVIL}/x", "failure": EVIL, "variant": EVIL, "strategy": EVIL, "stack": EVIL, "signature": EVIL}
    entry |= {"errors": [[EVIL, "gradients", 1, 0, float("inf")]], "relative_error": float("nan"), "outcome": EVIL}
    entry["expected"] = {"outcome": EVIL, "signatures": [EVIL], "record": f"javascript:{EVIL}"}
    rank = {"rank": 0, "exit": -6, "error": error, "losses": [float("nan"), float("-inf")], "steps": 1, "bad": 1}
    return entry | {"verdict": EVIL, "ranks": [rank | {"digests": [], "stack": EVIL, "log": EVIL}]}
