"""The commands that run the matrix and show it."""

from typing import Annotated

from cyclopts import Parameter

from faultline.base.packages import TODAY
from faultline.cli import completion
from faultline.cli.completion import one
from faultline.cli.options import HERE, WHOLE, Axes, Crew, File, Fresh, Python, Stack, at_most_one


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
    name: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="NAME", help="A failure or a word; none lists the words.", completer=one(completion.explained)
        ),
    ] = (),
    /,
    *,
    signatures: Annotated[bool, Parameter(help="Also print the patterns of a failure's errors.")] = False,
) -> int:
    """Show a failure, or what a word of the output means.

    Of a failure, also by its short id: its cause, what helps, and its records. Words are terms, outcomes, verdicts,
    signatures of errors, strategies and checkpointing modes.

    Examples:
      faultline show zero3_dummy_loss
      faultline show conditional
    """
    from faultline.catalogue.loading import failures, name_of_id

    text = " ".join(name)
    if name_of_id(text) in failures():
        from faultline.matrix import command

        return command.show(name_of_id(text), signatures)
    from faultline.explain import command as explanation

    return explanation.run(text)


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
