"""The commands that run the matrix and show it."""

from typing import Annotated

from cyclopts import Parameter

from faultline.base.packages import TODAY
from faultline.cli.options import CORES, WHOLE, Axes, RunName, Workers, at_most_one


def run(
    *,
    axes: Axes = WHOLE,
    stack: Annotated[
        str,
        Parameter(help="A name from stacks/, a date, or requirements such as 'trl==1.12.0'."),
    ] = TODAY,
    python: Annotated[str, Parameter(help="Another environment, by its interpreter.")] = "",
    workers: Workers = CORES,
    resume: Annotated[bool, Parameter(help="Go on with the newest run.")] = False,
    shard: Annotated[str, Parameter(metavar="I/N", help="Run one of N equal parts.")] = "",
    quick: Annotated[bool, Parameter(help="Run one cell of each variant, where its failure shows.")] = False,
) -> int:
    """Run cells, and compare each outcome with the expected one."""
    at_most_one(stack="" if stack == TODAY else stack, python=python)
    from faultline.matrix import command

    return command.run(command.RunRequest(axes.selection(), stack, python, workers, resume, shard, quick))


def list_(
    *,
    axes: Axes = WHOLE,
    ids: Annotated[bool, Parameter(help="Print only ids, one on each line.")] = False,
    left_out: Annotated[bool, Parameter(help="Print what the default matrix lacks, each with the rule.")] = False,
) -> int:
    """List the failures of a selection, with their titles and their cells."""
    at_most_one(ids=ids, left_out=left_out)
    from faultline.matrix import command

    return command.list_cells(axes.selection(), ids, left_out)


def show(
    failure: Annotated[str, Parameter(help="The name of a failure.")],
    /,
    *,
    signatures: Annotated[bool, Parameter(help="Also print the patterns of its errors.")] = False,
) -> int:
    """Show a failure: its cause, what you see, what helps and what doesn't, and its records."""
    from faultline.matrix import command

    return command.show(failure, signatures)


def report(run: RunName = "", /) -> int:
    """Show a run again, and write its page and junit.xml."""
    from faultline.matrix import command

    return command.report(run)
