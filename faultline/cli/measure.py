"""The commands that run the matrix and show it."""

from math import inf
from typing import Annotated

from cyclopts import Parameter

from faultline.base.errors import UsageError
from faultline.base.packages import TODAY
from faultline.cli.options import HERE, WHOLE, Axes, Crew, Device, Failure, File, Fresh, Python, Stack, at_most_one


def run(
    *,
    axes: Axes = WHOLE,
    stack: Annotated[
        Stack,
        Parameter(help="A name from stacks/, a date, or requirements such as 'trl==1.12.0'."),
    ] = TODAY,
    python: Python = "",
    crew: Crew = HERE,
    resume: Annotated[bool, Parameter(help="Go on with the newest run.")] = False,
    fresh: Fresh = False,
    results: Annotated[
        File, Parameter(help="The folder of this run; with --resume, it is gone on with if it is there.")
    ] = "",
    shard: Annotated[str, Parameter(metavar="I/N", help="Run one of N equal parts.")] = "",
    quick: Annotated[bool, Parameter(help="Run one cell of each variant, where its failure shows.")] = False,
) -> int:
    """Run cells, and compare each outcome with the expected one.

    Examples:
      faultline run --failure zero3_dummy_loss
      faultline run --strategy 'zero2*,fsdp2' --checkpointing reentrant --quick
    """
    at_most_one(stack="" if stack == TODAY else stack, python=python)
    from faultline.matrix import command

    workers, engine = crew.workers or 0, crew.engine()
    request = command.RunRequest(
        axes.selection(), stack, str(python), workers, resume, shard, quick, fresh, engine, str(results)
    )
    return command.run(request)


def explore(
    *,
    minutes: Annotated[float | None, Parameter(help="For how long programs are drawn (default: 10).")] = None,
    specs: Annotated[int, Parameter(help="How many programs are drawn, in place of --minutes.")] = 0,
    seed: Annotated[int | None, Parameter(help="Where chance begins (default: 0).")] = None,
    strategy: Annotated[str, Parameter(metavar="NAMES", help="Strategies, such as ddp,zero*,fsdp2.")] = "",
    device: Device = "",
    stack: Annotated[Stack, Parameter(help="A name from stacks/, a date, or requirements.")] = TODAY,
    since: Annotated[
        str, Parameter(metavar="STACK", help="Begin with what packages do that have changed since this stack.")
    ] = "",
    loops: Annotated[bool | None, Parameter(negative="", help="Draw plain loops only, no trainers.")] = None,
    crew: Crew = HERE,
    resume: Annotated[bool, Parameter(help="Go on with the newest exploration, as it was asked for.")] = False,
) -> int:
    """Train random programs under every engine, to find new failures.

    What trains otherwise than in one process is made as small as it can be, and compared with the catalogue.

    Examples:
      faultline explore --minutes 30 --seed 7
      faultline explore --specs 200 --strategy 'zero*'
      faultline explore --minutes 10 --since deepspeed==0.19.7
    """
    if not 0 < (1 if minutes is None else minutes) < inf or specs < 0:  # no number is neither
        raise UsageError("--minutes must be a number above 0, and --specs at least 1")
    from faultline.cells.cell import listed
    from faultline.explore import command

    names = command.strategies(listed(strategy)) if strategy else ()
    workers, engine = crew.workers or 0, crew.engine()
    request = command.Request(
        minutes, specs, seed, names, workers, resume, engine, stack, device=device, since=since, loops=loops
    )
    return command.run(request)


def list_(
    *,
    axes: Axes = WHOLE,
    ids: Annotated[bool, Parameter(help="Print only ids, one on each line.")] = False,
    left_out: Annotated[bool, Parameter(help="Print what the default matrix lacks, each with the rule.")] = False,
    symptoms: Annotated[
        bool, Parameter(help="Print what one sees without an error, and the failures behind it.")
    ] = False,
) -> int:
    """List failures with titles and cells, or the cells.

    Examples:
      faultline list
      faultline list --symptoms
      faultline list --ids --failure zero3_dummy_loss --strategy zero3
    """
    at_most_one(ids=ids, left_out=left_out, symptoms=symptoms)
    from faultline.matrix import command

    return command.list_symptoms(axes.selection()) if symptoms else command.list_cells(axes.selection(), ids, left_out)


def show(
    failure: Failure,
    /,
    *,
    signatures: Annotated[bool, Parameter(help="Also print the patterns of its errors.")] = False,
) -> int:
    """Show a failure: its cause, what helps, and its records.

    Examples:
      faultline show zero3_dummy_loss
    """
    from faultline.matrix import command

    return command.show(failure, signatures)


def report(
    run: Annotated[File, Parameter(metavar="RUN", help="The folder of a run; by default, the newest.")] = "", /
) -> int:
    """Show a run again, and write its page and junit.xml.

    Examples:
      faultline report
      faultline report ../run-of-a-colleague
    """
    from faultline.matrix import command

    return command.report(str(run))
