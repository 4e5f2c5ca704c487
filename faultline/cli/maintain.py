"""The commands of those who keep the catalogue."""

from typing import Annotated

from cyclopts import Parameter

from faultline.base.errors import UsageError
from faultline.cli import completion
from faultline.cli.completion import one, several
from faultline.cli.options import WHOLE, Axes, File, Json, Names, RunName, Workers

EXAMPLES = """\
Examples:
  faultline maintain bless --check           what a run changes in the rules
  faultline maintain env                     what an issue says of a machine"""
Runs = Annotated[list[File], Parameter(help="Folders of results/.")]
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


def record(runs: Sent, /) -> int:
    """Record what runs did: errors, and outcomes on GPUs.

    `diagnose` then knows the errors. A run on GPUs can also be the file that somebody sent.

    Examples:
      faultline maintain record results/latest
      faultline maintain record gpu-results.zip
    """
    from faultline.maintain import record

    return record.run([*map(str, runs)])


def score() -> int:
    """Measure how often diagnose is right.

    It also writes the table of fixtures/README.md.

    Examples:
      faultline maintain score
    """
    from faultline.maintain import score

    return score.run()


def durations(run: RunName = "", /) -> int:
    """Record how long the cells of a run took.

    It balances shards, and says beforehand how long a run takes.

    Examples:
      faultline maintain durations
    """
    from faultline.maintain import command

    return command.durations(str(run))


def merge(runs: Runs, /) -> int:
    """Put the shards of a run together.

    It also reports what is missing.

    Examples:
      faultline maintain merge shard-1 shard-2
    """
    from faultline.matrix import command

    return command.merge([*map(str, runs)])


def export_all(
    *,
    axes: Axes = WHOLE,
    workers: Workers = 1,
) -> int:
    """Export cells that fail, and run each file by itself.

    By default one cell of each variant.

    Examples:
      faultline maintain export-all --failure zero3_dummy_loss
    """
    from faultline.export import prove

    return prove.run_all(axes.selection(), workers)


def reports(
    *,
    failure: Annotated[
        Names, Parameter(help="Failures, such as 'zero*' (default: all).", completer=several(completion.failures))
    ] = "",
) -> int:
    """Write the upstream report of each failure of today.

    Each report's file is run once.

    Examples:
      faultline maintain reports --failure zero3_dummy_loss
    """
    from faultline.maintain import reports

    return reports.run(failure)


def clean_stacks() -> int:
    """Remove the environments of stacks that no run uses.

    Examples:
      faultline maintain clean-stacks
    """
    from faultline.maintain import machine

    return machine.clean_stacks()


def clean_results(*, keep: Annotated[int, Parameter(help="How many runs stay (default: 20).")] = 20) -> int:
    """Remove the results of all runs but the newest.

    Examples:
      faultline maintain clean-results --keep 5
    """
    if keep < 1:
        raise UsageError(f"--keep must be at least 1, not {keep}")
    from faultline.maintain import machine

    return machine.clean_results(keep)


def env(*, json: Json = False) -> int:
    """Print versions, devices and effective settings.

    Examples:
      faultline maintain env --json
    """
    from faultline.maintain import machine

    return machine.env(json)
