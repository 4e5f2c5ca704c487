"""The commands of those who keep the catalogue."""

from typing import Annotated, Literal

from cyclopts import Parameter

from faultline.base.errors import UsageError
from faultline.cli import completion
from faultline.cli.completion import one
from faultline.cli.options import WHOLE, Axes, File, Json, RunName, Workers

EXAMPLES = """\
Examples:
  faultline maintain bless --check           what a run changes in the rules
  faultline maintain env                     what an issue says of a machine"""
PROOFS = """\
Examples:
  faultline prove trust --matrix             the matrix's oracle, on seeded faults
  faultline prove bench                      what cells cost"""
Sent = Annotated[list[File], Parameter(help="Folders of results/, or files that runs on GPUs made.")]


def bless(
    run: RunName = "",
    /,
    *,
    failure: Annotated[str, Parameter(help="Only this failure.", completer=one(completion.failures))] = "",
    check: Annotated[bool, Parameter(help="Only print the difference; exit code 1 if there is one.")] = False,
) -> int:
    """Rewrite expected.toml from a run, with few rules.

    Examples:
      faultline maintain bless --failure zero3_dummy_loss --check
    """
    from faultline.maintain import command

    return command.bless(str(run), failure, check)


def readmes(run: RunName = "", /) -> int:
    """Rewrite the READMEs' measured parts from a run.

    It also rewrites the catalogue's page.

    Examples:
      faultline maintain readmes
    """
    from faultline.maintain import command

    return command.readmes(str(run))


def record(
    runs: Sent,
    /,
    *,
    durations: Annotated[bool, Parameter(help="Only record how long the cells of a whole run took.")] = False,
) -> int:
    """Record what runs did: errors, outcomes on GPUs, durations.

    `diagnose` then knows the errors. A run on GPUs can also be the file that somebody sent. Durations balance shards,
    and say beforehand how long a run takes.

    Examples:
      faultline maintain record results/latest
      faultline maintain record gpu-results.zip
    """
    from faultline.maintain import command, record

    if durations:
        if len(runs) > 1:
            raise UsageError("--durations takes one run: it writes all that is recorded of durations anew")
        return command.durations(str(runs[0]))
    return record.run([*map(str, runs)])


def score() -> int:
    """Measure how often diagnose is right.

    It also writes the table of fixtures/README.md.

    Examples:
      faultline maintain score
    """
    from faultline.maintain import score

    return score.run()


def export_all(
    *,
    axes: Axes = WHOLE,
    workers: Workers = 1,
    reports: Annotated[bool, Parameter(help="Write the upstream report of each failure of today.")] = False,
) -> int:
    """Export cells that fail, and run each file by itself.

    By default one cell of each variant.

    Examples:
      faultline maintain export-all --failure zero3_dummy_loss
    """
    if reports:
        from faultline.maintain import reports as upstream

        return upstream.run(axes.failure)
    from faultline.export import prove

    return prove.run_all(axes.selection(), workers)


def clean(
    what: Annotated[Literal["stacks", "results"], Parameter(help="Environments of stacks, or runs.")],
    /,
    *,
    keep: Annotated[int, Parameter(help="How many runs stay (default: 20).")] = 20,
) -> int:
    """Remove unused environments, or old results.

    No environment that a run uses is removed, and the results of the newest runs stay.

    Examples:
      faultline maintain clean stacks
      faultline maintain clean results --keep 5
    """
    if keep < 1:
        raise UsageError(f"--keep must be at least 1, not {keep}")
    from faultline.maintain import machine

    return machine.clean_stacks() if what == "stacks" else machine.clean_results(keep)


def env(*, json: Json = False) -> int:
    """Print versions, devices and effective settings.

    Examples:
      faultline maintain env --json
    """
    from faultline.maintain import machine

    return machine.env(json)
