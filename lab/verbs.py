"""The commands that only a clone has: `explore`, what keeps findings and pins, and what proves Faultline itself."""

from math import inf
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from faultline.base.errors import UsageError
from faultline.base.packages import TODAY
from faultline.cli.options import (
    CORES,
    EVERYWHERE,
    HERE,
    WHOLE,
    Axes,
    Crew,
    Device,
    File,
    Fresh,
    Places,
    Stack,
    Workers,
)


def repeat(*, axes: Axes = WHOLE, workers: Workers = CORES) -> int:
    """Run cells twice, and compare every outcome.

    Examples:
      faultline prove repeat --failure zero3_dummy_loss
    """
    from faultline.catalogue.loading import failures
    from faultline.cells.selection import select
    from lab.proofs import reliability

    return reliability.repeat(select(failures(), axes.selection()), workers)


def chaos(
    *,
    cells: Annotated[int, Parameter(help="How many cells to run (default: 200).")] = 200,
    rate: Annotated[float, Parameter(help="The share of the ranks to kill (default: 0.05).")] = 0.05,
    seed: Annotated[int, Parameter(help="Where chance begins (default: 0).")] = 0,
    workers: Workers = CORES,
) -> int:
    """Run cells while ranks are killed at random.

    Examples:
      faultline prove chaos --cells 50 --rate 0.1
    """
    if cells < 1 or not 0 <= rate <= 1:
        raise UsageError("--cells must be at least 1, and --rate a share between 0 and 1")
    from lab.proofs import reliability

    return reliability.chaos(cells, rate, seed, workers)


def soak(
    *,
    cells: Annotated[int, Parameter(help="How many cells to run (default: 200).")] = 200,
    seed: Annotated[int, Parameter(help="Where chance begins (default: 0).")] = 0,
    fleet: Annotated[Literal["ray"], Parameter(help="The kind of cluster, of which one is started here.")] = "ray",
) -> int:
    """Run cells on a cluster while its parts are killed.

    Examples:
      faultline prove soak --cells 2000 --fleet ray
    """
    if cells < 1:
        raise UsageError("--cells must be at least 1")
    from lab.proofs import soak as fire

    return fire.run(cells, seed)


def findings(
    names: Annotated[
        list[str] | None, Parameter(help="Names of findings, or paths of their folders (default: all).")
    ] = None,
    /,
    *,
    write: Annotated[bool, Parameter(help="Write what they do now into their seen.json.")] = False,
    add: Annotated[str, Parameter(help="Add the numbers of an exploration, by its folder.")] = "",
    keep: Annotated[str, Parameter(help="Copy a finding of an exploration to findings/, by its folder.")] = "",
    files: Annotated[bool, Parameter(help="Write the file and the issue of each, and run the file.")] = False,
    page: Annotated[bool, Parameter(help="Only write the page of all findings anew, and replay none.")] = False,
    adopt: Annotated[str, Parameter(help="Write a failure's folder from a finding, by its name.")] = "",
    bisect: Annotated[
        str, Parameter(metavar="PACKAGE", help="Find the release of this package that began a finding.")
    ] = "",
    workers: Workers = CORES,
) -> int:
    """Replay what explorations have found, and say what changed.

    Examples:
      faultline maintain findings --write
      faultline maintain findings fsdp2_adafactor_raises --files
      faultline maintain findings zero_scalar_weight_raises --bisect deepspeed
      faultline maintain findings --add results/explore-2026-11-27T08-20-13
      faultline maintain findings --keep results/explore-1/findings/fsdp2_raises
      faultline maintain findings --adopt fsdp2_adafactor_raises
    """
    from lab.explore import overview, publishing, replay

    if page:
        print(overview.write())
        return 0
    if bisect:
        return replay.bisect(tuple(names or ()), bisect, workers)
    if add:
        return publishing.count_in(add)
    if keep:
        return publishing.take_in(keep)
    if adopt:
        return publishing.adopt(adopt)
    if files:
        return publishing.files(tuple(names or ()))

    return replay.run(replay.Request(tuple(names or ()), workers, write))


def trust(
    *,
    healthy: Annotated[int | None, Parameter(help="How many healthy specs (default: 500), or cells (1000).")] = None,
    faulty: Annotated[int | None, Parameter(help="How many seeded faults (default: 300; of the matrix, all).")] = None,
    matrix: Annotated[bool, Parameter(help="Prove the matrix's oracle, on cells of the matrix.")] = False,
    seed: Annotated[int, Parameter(help="Where chance begins (default: 0).")] = 0,
    workers: Workers = CORES,
    resume: Annotated[bool, Parameter(help="Go on with the newest proof.")] = False,
) -> int:
    """Prove check, or the matrix's oracle, on what is known.

    For check, models are made from random specs, healthy and with one seeded fault. For the oracle, cells of the
    matrix that train run as they are, and with every fault that can be seeded into them.

    Examples:
      faultline prove trust --healthy 50 --faulty 30
      faultline prove trust --matrix
    """
    if min(each for each in (healthy, faulty, 1) if each is not None) < 0 or (healthy, faulty) == (0, 0):
        raise UsageError("--healthy and --faulty must be at least 0, and one of them more than that")
    from lab.proofs import trust

    return trust.run(trust.Request(healthy, faulty, seed, workers, resume, matrix))


def bench() -> int:
    """Measure what cells cost.

    It also writes the table of bench/README.md.

    Examples:
      faultline prove bench
    """
    from lab.proofs import bench

    return bench.bench()


def replay(
    names: Annotated[tuple[str, ...], Parameter(help="Upgrades of stacks/bumps.toml (default: all).")] = (),
    /,
    *,
    change: Annotated[
        File, Parameter(metavar="FILE", help="Judge today's pins against this older requirements.txt instead.")
    ] = "",
    workers: Workers = CORES,
    resume: Annotated[bool, Parameter(help="Go on with the newest replay.")] = False,
    fresh: Fresh = False,
) -> int:
    """Run is-safe over past upgrades, or for changed pins.

    The answers of past upgrades are known, and compared.

    Examples:
      faultline maintain replay --resume
      faultline maintain replay --change old/requirements.txt
    """
    from lab.proofs import upgrades

    if change:
        return upgrades.change(Path(change))

    return upgrades.replay(names, workers, resume, fresh)


def models(
    names: Annotated[tuple[str, ...], Parameter(help="Model types of fixtures/models.toml (default: all).")] = (),
    /,
    *,
    places: Places = EVERYWHERE,
    stack: Annotated[Stack, Parameter(help="A stack of stacks/, or requirements.")] = "today",
    workers: Workers = CORES,
    resume: Annotated[bool, Parameter(help="Go on with the newest run of this kind.")] = False,
    lint: Annotated[bool, Parameter(negative="", help="Only read the plans of tensor parallelism, in one process.")] = (
        False
    ),
) -> int:
    """Check the tiny form of many model types of transformers.

    It also writes docs/models.md. By default, under one strategy of each kind.

    Under transformers' own parallelism (tp, ep-fsdp, ...) all types are run that have a plan for it, also those that
    fixtures/models.toml lacks: with one and with two micro-batches a step, and without LoRA, a known failure there.

    Examples:
      faultline prove models qwen3 llava
      faultline prove models --strategy tp,ep-fsdp --checkpointing off
      faultline prove models --lint apertus
    """
    from lab.proofs import models

    if lint:
        return models.lint(names, stack)
    return models.run(models.Request(names, places.selection(), stack, workers, resume))


def bump(
    requirements: Annotated[str, Parameter(help="Versions, such as 'transformers==5.24.0'.")],
    /,
    *,
    workers: Workers = CORES,
) -> int:
    """Move pins, and measure all again.

    It asks is-safe, and writes the pins. Once they are installed, it runs the matrix, blesses what is new for the new
    versions alone, replays the findings, and rewrites records, durations and READMEs. It ends with what a person must
    decide. An interrupted one goes on. `make bump` does all of it.

    Examples:
      faultline maintain bump transformers==5.24.0
    """
    from lab import bump

    return bump.run(requirements, workers)


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
    from faultline.cells.cell import split_values
    from lab.explore import command

    patterns = split_values(strategy)
    names = command.strategies_named(patterns) if patterns else ()
    workers, engine = crew.workers or 0, crew.engine()
    request = command.Request(
        minutes, specs, seed, names, workers, resume, engine, stack, device=device, since=since, loops=loops
    )
    return command.run(request)


MEASURE = (explore,)
MAINTAIN = (findings, replay, bump)
PROVE = (trust, repeat, chaos, soak, bench, models)
