"""What a soak calls wrong: planted, each is seen, and what only looks like it passes."""

import signal

from faultline.cells.cell import Cell
from faultline.maintain import soak
from faultline.runs.results import RankResult
from tests.support.entries import entry

ONE, OTHER = (Cell("grpo_lora_no_grad", "broken", strategy) for strategy in ("ddp", "zero2"))
HERE = {ONE: entry(ONE), OTHER: entry(OTHER, "raises", "empty-gradient")}


def judged(*seen, drawn=(ONE, OTHER), left=()):
    """The names of what is wrong, each with the cells."""
    return {name: [*wrong] for name, wrong in vars(soak.judged(drawn, seen, HERE, left)).items() if wrong}


def test_each_thing_that_is_wrong_is_seen():
    """Breaks when a soak's table has a zero, or a number, whatever happens."""
    one, other = entry(ONE), HERE[OTHER]
    assert not judged(other, one)
    assert not judged(one, entry(OTHER, "raises", "sharded-again")), "either of two ranks may be the first"
    assert judged(one) == {"lost": [OTHER.id]}
    assert judged(one, one, other) == {"doubled": [ONE.id]}
    assert judged(one, other, left=["port 9"]) == {"left": ["port 9"]}
    strange = entry(ONE, "diverges", "differs", "unexpected failure")
    assert judged(strange, other) == {"different": [f"{ONE.id}: diverges differs"]}
    killed = (RankResult(0, exit=-signal.SIGKILL),)
    blamed = entry(ONE, "crashes", "SIGKILL", "unexpected failure", ranks=killed, detail="killed")
    assert judged(blamed, other) == {"blamed": [f"{ONE.id}: killed"]}
    lost = entry(ONE, "invalid", "lost", "invalid", detail="lost 3 times")
    assert judged(lost, other) == {"blamed": [f"{ONE.id}: lost 3 times"]}
