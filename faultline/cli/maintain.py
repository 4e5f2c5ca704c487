"""The commands of those who keep the catalogue."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from faultline.base.errors import UsageError
from faultline.cli.options import CORES, WHOLE, Axes, Json, Names, RunName, Workers

Runs = Annotated[list[str], Parameter(help="Folders of results/.")]


def bless(
    run: RunName = "",
    /,
    *,
    failure: Annotated[str, Parameter(help="Only this failure.")] = "",
    check: Annotated[bool, Parameter(help="Only print the difference; exit code 1 if there is one.")] = False,
) -> int:
    """Rewrite expected.toml from a run, with as few rules as possible."""
    from faultline.maintain import command

    return command.bless(run, failure, check)


def readmes(run: RunName = "", /) -> int:
    """Rewrite the measured part of each failure's README from a run, and the catalogue."""
    from faultline.maintain import command

    return command.readmes(run)


def record(runs: Runs, /) -> int:
    """Record the errors that runs ended with, which diagnose knows from then on."""
    from faultline.maintain import record

    return record.run(runs)


def score() -> int:
    """Measure how often diagnose is right, and write the table of fixtures/README.md."""
    from faultline.maintain import score

    return score.run()


def durations(run: RunName = "", /) -> int:
    """Record how long the cells of a run took, which balances shards."""
    from faultline.maintain import command

    return command.durations(run)


def merge(runs: Runs, /) -> int:
    """Put the shards of a run together, and report what is missing."""
    from faultline.maintain import command

    return command.merge(runs)


def repeat(*, axes: Axes = WHOLE, workers: Workers = CORES) -> int:
    """Run cells twice, and compare every outcome."""
    from faultline.maintain import reliability
    from faultline.runs.devices import runnable

    return reliability.repeat(runnable(axes.selection()), workers)


def chaos(
    *,
    cells: Annotated[int, Parameter(help="How many cells to run (default: 200).")] = 200,
    rate: Annotated[float, Parameter(help="The share of the ranks to kill (default: 0.05).")] = 0.05,
    seed: Annotated[int, Parameter(help="Where chance begins (default: 0).")] = 0,
    workers: Workers = CORES,
) -> int:
    """Run random cells while ranks are killed at random moments."""
    if cells < 1 or not 0 <= rate <= 1:
        raise UsageError("--cells must be at least 1, and --rate a share between 0 and 1")
    from faultline.maintain import reliability

    return reliability.chaos(cells, rate, seed, workers)


def bench() -> int:
    """Measure what cells cost, and write the table of bench/README.md."""
    from faultline.maintain import bench

    return bench.bench()


def replay(
    names: Annotated[tuple[str, ...], Parameter(help="Upgrades of stacks/bumps.toml (default: all).")] = (),
    /,
    *,
    workers: Workers = CORES,
    resume: Annotated[bool, Parameter(help="Go on with the newest replay.")] = False,
) -> int:
    """Run is-safe over past upgrades whose answer is known."""
    from faultline.maintain import bumps

    return bumps.replay(names, workers, resume)


def chart() -> int:
    """Draw the recorded timeline."""
    from faultline.releases import timeline

    return timeline.draw()


def export_all(
    *,
    axes: Axes = WHOLE,
    workers: Workers = 1,
) -> int:
    """Export cells that fail, one of each variant unless some are named, and run each file by itself."""
    from faultline.export import prove

    return prove.run_all(prove.Request(axes.selection(), workers))


def reports(*, failure: Annotated[Names, Parameter(help="Failures, such as 'zero*' (default: all).")] = "") -> int:
    """Export and run the upstream report of each failure that today's releases have."""
    from faultline.maintain import reports

    return reports.run(failure)


def advisories() -> int:
    """Write an advisory in the OSV format for each failure."""
    from faultline.maintain import advisories

    return advisories.run()


def is_safe_change(before: Annotated[str, Parameter(help="An older requirements.txt.")], /) -> int:
    """Run is-safe for the pins that differ between an older requirements.txt and today's."""
    from faultline.maintain import bumps

    return bumps.change(Path(before))


def clean_stacks() -> int:
    """Remove the environments of all stacks, except if a run uses one."""
    from faultline.maintain import machine

    return machine.clean_stacks()


def env(*, json: Json = False) -> int:
    """Print versions, devices and effective settings."""
    from faultline.maintain import machine

    return machine.env(json)


def screenshots() -> int:
    """Make the pictures of the pages again, from commands that are run for them."""
    from faultline.maintain import screenshots

    return screenshots.run()


def site() -> int:
    """Build the static site into generated/site, with a page for each failure and each stack."""
    from faultline.site import build

    return build.run()
