"""Logs and the answers to them: what the tests of diagnose ask, each labelled log answered once for a process."""

import functools
import io

from rich.console import Console

from faultline.diagnose import lines as diagnose_lines
from faultline.diagnose import view
from faultline.diagnose.diagnosis import details, diagnose
from faultline.maintain import score
from faultline.observations.matching import Hints

NO_GRAD = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"
UNUSED = "RuntimeError: Expected to have finished reduction in the prior iteration before starting a new one."
TWO_DEVICES = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices"
RECOMPUTED = (
    "torch.utils.checkpoint.CheckpointError: torch.utils.checkpoint: Recomputed values for the following tensors have "
    "different metadata than during the forward pass."
)
TIMEOUT = "Watchdog caught collective operation timeout: x\n"
WHILE_HANDLED = "\nDuring handling of the above exception, another exception occurred:\n\n"
FRAMES = '  File "train.py", line 3, in <module>\n    trainer.train()\n'


def traceback(last, rank=None, frames=FRAMES):
    """The text of a traceback, as a rank's lines if there is a rank."""
    lines = f"Traceback (most recent call last):\n{frames}{last}\n"
    return lines if rank is None else "".join(f"[rank{rank}]: {line}\n" for line in lines.splitlines())


def lines(text, name="log"):
    """The lines of one log."""
    return diagnose_lines.lines(name, io.BytesIO(text.encode()))


def diagnosed(text, options=None, closely=False, name="log", **how):
    """The answer to a log, with every line looked at if it is read closely; `how` are options."""
    content = text if isinstance(text, bytes) else text.encode()

    def read(wanted):
        every = (lambda: wanted() and None) if closely else wanted
        return diagnose_lines.lines(name, io.BytesIO(content), every)

    return diagnose(read, Hints(**how) if how else options)


def printed(answer, known=None):
    """What a person is shown of an answer, of which the details may be known."""
    shown = io.StringIO()
    view.show(Console(file=shown, width=200), answer, known or details(answer))
    return shown.getvalue()


def place(strategy="", checkpointing=""):
    """The options that name a strategy, a checkpointing mode, or both."""
    return {"strategies": frozenset(filter(None, [strategy])), "modes": frozenset(filter(None, [checkpointing]))}


def summary(answer):
    """An answer in a few words: what it names and how sure, the first of several, or the first that is excluded."""
    if answer.match:
        return f"{answer.match.sure}: {score.answer_of(answer)}"
    if answer.several:
        return f"one of several: {answer.several[0].failure.name}"
    return f"unknown: {answer.alike[0].failure.name}" if answer.alike else "unknown"


@functools.cache
def samples():
    """Every labelled log, by group and name."""
    return {(sample.group, sample.name): sample for sample in score.labelled_logs()}


def pasted():
    """The labelled logs that people pasted, and the near misses."""
    return [sample for sample in samples().values() if sample.group in (score.PASTED, score.NEAR_MISS)]


@functools.cache
def pasted_lines():
    """The different lines of these logs, that nothing can be learnt twice from one."""
    return sorted({line for sample in pasted() for line in sample.log.decode().splitlines() if line.strip()})


def answer_to(sample):
    """The answer to a labelled log."""
    return _answer((sample.group, sample.name))


@functools.cache
def _answer(key):
    return score.diagnosed(samples()[key])
