"""Results of cells that nobody ran, as the oracle judges them."""

from faultline.catalogue.outcomes import Outcome, Signature
from faultline.cells.expected import Expectation
from faultline.runs import results
from faultline.runs.nodes import Ended
from faultline.runs.oracle import Judgement

WRONG = Judgement(Outcome.DIVERGES, Signature.DIFFERS, "gradient of first.weight differs by 120 %")
RIGHT = Judgement(Outcome.TRAINS)


def raises(words):
    return Judgement(Outcome.RAISES, Signature.OTHER, words)


def judged(cell, judgement=RIGHT, **stack):
    return results.result(cell, judgement, Ended([]), stack, Expectation(), "expected")
