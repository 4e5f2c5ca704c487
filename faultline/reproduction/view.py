"""What became of a report, on the terminal: its facts, what it may be, what ran, and what helps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from faultline.base.console import write_line
from faultline.base.packages import stack_name
from faultline.base.text import here, one_line
from faultline.catalogue import Failure
from faultline.catalogue.outcomes import Did
from faultline.cells import words
from faultline.cells.cell import Cell
from faultline.diagnose.prose import only_with
from faultline.reproduction.facts import ReportFacts
from faultline.runs.campaigns import Measured
from faultline.stacks.requests import Stack

SEVERAL = "several failures show so on their versions; what each takes decides which one it is"
ASK = (
    "the versions (`transformers env`, or `pip list`), and the DeepSpeed or accelerate config",
    "how it was launched, on how many GPUs, and the training arguments",
    "the first error of the rank that failed first; or the numbers that are wrong, beside those of one GPU",
)


@dataclass(frozen=True)
class Tried:
    """What a failure's nearest cell did on the reporter's versions, and what it does with each remedy there and today.

    `as_reported` is what shows of the report: the same error, or symptoms that it has; empty for neither.
    """

    failure: Failure
    cell: Cell
    did: Did | None = None
    as_reported: str = ""
    helps: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    today: Did | None = None


def show_facts(console: Console, known: ReportFacts) -> None:
    write_line(console, "What the report says", "bold")
    for fact in known.facts:
        write_line(console, f"  {fact.name:<14} {one_line(fact.value)}  ({one_line(fact.place)})")
    if not known.facts:
        write_line(console, "  nothing of versions, strategy or settings")


def show_candidates(console: Console, known: ReportFacts, failures: Sequence[Failure]) -> None:
    diagnosis = known.diagnosis.diagnosis
    console.print()
    by = "by its error" if diagnosis.cause and (diagnosis.match or diagnosis.several) else "by its words and files"
    if not failures:
        _ask(console, "No failure of the catalogue comes near to it. What would help most:")
        return
    write_line(console, f"What it may be, {by}", "bold")
    for failure in failures:
        write_line(console, f"  {failure.name}  {failure.title}")


def show_stack(console: Console, stack: Stack, guesses: Sequence[str]) -> None:
    console.print()
    write_line(console, Text("Their versions  ", "bold").append(one_line(stack.name), "not bold"))
    for guess in guesses:
        write_line(console, f"  a guess: {one_line(guess)}")


def show_unusable(console: Console, stack: Stack, there: Measured) -> None:
    write_line(console, f"These versions can't be had here: {one_line(there.unusable)}")
    write_line(console, "  name others: --stack, with a date such as 2025-06-01 or requirements")


def show(console: Console, tried: Sequence[Tried], there: Measured) -> None:
    """Print the answer first, then each failure's cell, what helps, and the commands that repeat it."""
    shown = [each for each in tried if each.as_reported]
    console.print()
    if len(shown) > 1:
        write_line(console, Text("REPRODUCED  ", "bold green").append(SEVERAL, "not bold default"))
    elif shown:
        write_line(console, Text("REPRODUCED  ", "bold green").append(shown[0].failure.title, "not bold default"))
    else:
        other = any(each.did and each.did.outcome not in ("trains", "impossible", "invalid") for each in tried)
        write_line(console, "ANOTHER FAILURE" if other else "NOT REPRODUCED", "bold yellow")
    write_line(console, f"  on {stack_name(there.versions)}")
    for each in tried:
        _show_tried(console, each)
    if not shown:
        console.print()
        _ask(console, "What would help most:")


def _ask(console: Console, beginning: str) -> None:
    write_line(console, beginning, "bold")
    for line in ASK:
        write_line(console, f"  {line}")


def _show_tried(console: Console, tried: Tried) -> None:
    """Print what a failure's nearest cell did, and with each remedy."""
    console.print()
    did = str(tried.did) if tried.did else "not run"
    how = f"as reported: {tried.as_reported}" if tried.as_reported else "not as reported"
    write_line(console, tried.failure.name, "bold")
    write_line(console, f"  {did}, {how}")
    if takes := only_with(tried.failure):
        write_line(console, f"  it takes {takes}")
    write_line(console, f"  {here(words.command(tried.cell.id, ''))}", "dim")
    if tried.helps:
        width = max(map(len, tried.helps))
        write_line(console, f"  {'what helps':<{width}}  on their versions  today", "dim")
        for text, (then, now) in tried.helps.items():
            write_line(console, f"  {text:<{width}}  {then:<17}  {now}")
    if tried.today:
        trains = tried.today.outcome == "trains"
        does = "trains on today's releases: an upgrade is enough" if trains else f"ends so today, too: {tried.today}"
        write_line(console, f"  without any of these it {does}")
        write_line(console, f"  fixed: {tried.failure.until}")
