"""The commands that answer a question about somebody's log, model, project or upgrade."""

import os
from typing import Annotated, Literal

from cyclopts import Parameter

from faultline.base.axes import STRATEGY
from faultline.base.packages import TODAY
from faultline.cli import completion, options
from faultline.cli.completion import one, several
from faultline.cli.options import (
    CORES,
    HERE,
    WHOLE,
    Axes,
    Checkpointing,
    Crew,
    Device,
    File,
    Fresh,
    Json,
    Names,
    Python,
    Stack,
    Workers,
    at_least,
    at_most_one,
)


def diagnose(
    logs: Annotated[
        tuple[File, ...],
        Parameter(help="Log files, also gzipped; none or - is standard input."),
    ] = (),
    /,
    *,
    strategy: Annotated[
        Names,
        Parameter(
            help="The strategy of the run, if the log doesn't name it.", completer=several(completion.values(STRATEGY))
        ),
    ] = "",
    checkpointing: Checkpointing = "",
    stack: Annotated[Stack, Parameter(help="A name from stacks/, a month, or versions such as trl==0.15.2.")] = "",
    json: Json = False,
) -> int:
    """Name the failure that a log shows, and what helps against it.

    The text of an error may stand in the place of a file.

    Examples:
      faultline diagnose train.log
      torchrun train.py 2>&1 | tee train.log | faultline diagnose
    """
    from faultline.diagnose import command

    return command.run(command.DiagnoseRequest(tuple(map(str, logs)), strategy, checkpointing, stack, json))


def check(
    target: Annotated[
        File, Parameter(metavar="TARGET", help="train.py:build, a config.json, or the folder of a model.")
    ],
    /,
    *,
    lora: Annotated[str, Parameter(metavar="r=8,target=all-linear", help="Add an adapter of PEFT.")] = "",
    stack: Annotated[Stack, Parameter(help="Other versions: a name from stacks/, or trl==1.12.0.")] = "",
    python: Python = "",
    units: Annotated[
        str,
        Parameter(metavar="CLASSES", help="Classes of FSDP's units: Block,Head, or root for the model alone."),
    ] = "",
    places: options.Places = options.EVERYWHERE,
    workers: Workers = CORES,
    resume: Annotated[bool, Parameter(help="Go on with the newest check, if it is of the same model.")] = False,
    export: Annotated[File, Parameter(help="Write the first difference as a script, into a file that is new.")] = "",
    json: Json = False,
) -> int:
    """Compare your model under each strategy with a single process.

    By default under all strategies and checkpointing modes, in fp32 and with 2 ranks.

    Examples:
      faultline check train.py:build
      faultline check path/to/model --lora r=8,target=all-linear --strategy zero3
    """
    at_most_one(stack=stack, python=python)
    from faultline.check import command

    request = command.CheckRequest(
        *(str(target), places.selection(), lora, stack or TODAY, str(python), workers, json),
        resume=resume,
        export=str(export),
        units=units,
    )
    return command.run(request)


def audit(
    files: Annotated[
        tuple[File, ...],
        Parameter(help="Requirements, lock files, configs, scripts, code, or folders; - is stdin."),
    ] = (),
    /,
    *,
    env: Annotated[bool, Parameter(help="Read the packages of the active environment.")] = False,
    python: Annotated[File, Parameter(help="Read the packages of another environment, by its interpreter.")] = "",
    all: Annotated[bool, Parameter(help="Also list what only could apply, and what is open of it.")] = False,
    failure: Annotated[
        str,
        Parameter(metavar="NAME", help="Show all of this failure, and no other.", completer=one(completion.failures)),
    ] = "",
    json: Json = False,
    format: Annotated[
        Literal["sarif", "github"] | None, Parameter(help="Print SARIF, or annotations for GitHub's workflows.")
    ] = None,
) -> int:
    """List the failures whose conditions hold in a training project.

    By default, that of the current folder. Nothing of it is run.

    Exit code 1: a failure is certain. 0: none is, though some may be undecided.

    Examples:
      faultline audit
      faultline audit requirements.txt accelerate.yaml train.sh
    """
    at_most_one(json=json, format=format, failure=failure)
    at_most_one(all=all, failure=failure)
    from faultline.audit import command

    form = "json" if json else format or "text"
    return command.run(command.AuditRequest([*map(str, files)], env, str(python), all, failure, form))


def export(
    cell: Annotated[str, Parameter(help="A whole cell id.", completer=one(completion.cells))],
    /,
    *,
    output: Annotated[File, Parameter(name=["--output", "-o"], help="The file; default: stdout.")] = "",
    force: Annotated[bool, Parameter(help="Overwrite the file.")] = False,
    markdown: Annotated[bool, Parameter(help="Write the issue around the file.")] = False,
    run: Annotated[bool, Parameter(help="Run the file first, and put what it prints into the issue.")] = False,
) -> int:
    """Write one file, or one issue, that shows a cell by itself.

    Examples:
      faultline export zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu -o repro.py
      faultline export zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu --markdown --run
    """
    from faultline.export import command

    return command.run(options.cells(cell), str(output), force, markdown, run)


def is_safe(
    to: Annotated[
        Stack,
        Parameter(
            metavar="TO",
            help="Requirements such as 'trl==1.12.0', a requirements or lock file, a name from stacks/, or a date.",
        ),
    ],
    *,
    base: Annotated[Stack, Parameter(help="The baseline, in the same forms; by default, what is installed.")] = TODAY,
    python: Annotated[File, Parameter(help="The baseline: another environment, by its interpreter.")] = "",
    all: Annotated[bool, Parameter(help="Run the whole default matrix.")] = False,
    affected: Annotated[
        bool, Parameter(help="Run only cells that execute what changed, and a sample of the others.")
    ] = False,
    fail_fast: Annotated[bool, Parameter(help="End at the first regression.")] = False,
    known: Annotated[bool, Parameter(help="Answer from recorded runs, and run nothing.")] = False,
    axes: Axes = WHOLE,
    crew: Crew = HERE,
    resume: Annotated[bool, Parameter(help="Go on with the newest is-safe.")] = False,
    fresh: Fresh = False,
) -> int:
    """Run the same cells before and after an upgrade, and judge it.

    Examples:
      faultline is-safe trl==1.12.0 --strategy 'zero*'
      faultline is-safe --base uv.lock --to deepspeed==0.18.9
      faultline is-safe torch==2.14.1 --known
    """
    at_most_one(base="" if base == TODAY else base, python=python)
    from faultline.releases import is_safe

    workers, engine = crew.workers or 0, crew.engine()
    request = is_safe.IsSafeRequest(
        *(to, axes.selection(), base, all, workers, resume, str(python), fresh, affected, fail_fast, engine, known)
    )
    return is_safe.run(request)


def bisect(
    *,
    package: Annotated[str, Parameter(help="Any package of the stack.", completer=one(completion.packages))],
    axes: Axes = WHOLE,
    introduced: Annotated[bool, Parameter(help="Find the first release with the failure.")] = False,
    fixed: Annotated[
        bool, Parameter(help="Find the first release without it; by default, the newest release decides.")
    ] = False,
    others: Annotated[
        Literal["dated", "fixed"],
        Parameter(help="The rest of the stack: as of each release's date (default), or as installed."),
    ] = "dated",
    oldest: Annotated[str, Parameter(name="--from", metavar="VERSION", help="The oldest release to look at.")] = "",
    newest: Annotated[str, Parameter(name="--to", metavar="VERSION", help="The newest release to look at.")] = "",
    bad: Annotated[str, Parameter(metavar="OUTCOMES", help="What counts as the failure, such as raises:other.")] = "",
    blame: Annotated[bool, Parameter(help="Find which of all changed packages matter.")] = False,
    crew: Crew = HERE,
    resume: Annotated[bool, Parameter(help="Go on with the newest bisect.")] = False,
    fresh: Fresh = False,
) -> int:
    """Find the release that introduced or fixed a failure.

    Examples:
      faultline bisect --package trl --failure grpo_lora_no_grad --strategy ddp
    """
    at_most_one(introduced=introduced, fixed=fixed)
    from faultline.releases import bisect

    direction: bisect.Direction = "introduced" if introduced else "fixed" if fixed else ""
    cells, workers, engine = axes.selection(), crew.workers or 0, crew.engine()
    return bisect.run(
        bisect.BisectRequest(
            package, cells, direction, others, oldest, newest, bad, blame, workers, resume, fresh, engine
        )
    )


def reproduce(
    what: Annotated[
        tuple[File, ...],
        Parameter(
            metavar="REPORT",
            help="The name of a failure; or files and folders of a report.",
            negative=(),
            completer=one(completion.failures),
        ),
    ],
    /,
    *,
    device: Device = "cpu",
    minutes: Annotated[int, Parameter(validator=at_least(1, "--minutes"), help="Begin nothing new after these.")] = 15,
    stack: Annotated[Stack, Parameter(help="In place of the report's versions, as of `faultline run`.")] = "",
    workers: Workers = CORES,
    resume: Annotated[bool, Parameter(help="Go on with the newest run of this report.")] = False,
) -> int:
    """Show a failure, or a report, on its own versions.

    Of a failure, the stack of its report and today's. A report is a text, a log, configs and scripts, of which nothing
    is run: it runs the nearest cells on the report's versions, and what helps there and today.

    Examples:
      faultline reproduce zero3_dummy_loss
      faultline reproduce issue.md train.log ds_config.json
    """
    if len(what) == 1 and not os.path.exists(what[0]):
        from faultline.releases import reproduce

        return reproduce.run(str(what[0]), device or "cpu")
    from faultline.reproduction import command

    return command.run(command.ReproduceRequest([*map(str, what)], minutes, stack, workers, resume))


def timeline(
    *,
    axes: Axes = WHOLE,
    since: Annotated[str, Parameter(metavar="DATE", help="The first date (default: the first usable stack's).")] = "",
    until: Annotated[str, Parameter(metavar="DATE", help="The last date (default: today, as installed).")] = "",
    crew: Crew = HERE,
    resume: Annotated[bool, Parameter(help="Go on with the newest timeline.")] = False,
    fresh: Fresh = False,
    write: Annotated[bool, Parameter(help="Make the result a part of what is recorded, in observations/.")] = False,
) -> int:
    """Run cells on the libraries as of the first of each month.

    Examples:
      faultline timeline --since 2025-06-01 --failure grpo_lora_no_grad
    """
    from faultline.releases import timeline

    workers, engine = crew.workers or 0, crew.engine()
    return timeline.run(timeline.TimelineRequest(axes.selection(), since, until, workers, resume, write, fresh, engine))
