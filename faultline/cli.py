"""The command line: every mistake is one clear line and exit code 2."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from faultline import (
    audit,
    bisect,
    candidates,
    check,
    commands,
    diagnose,
    environments,
    export,
    over_time,
    recorded,
    replay,
    report,
    reproduce,
    score,
    stacks,
)
from faultline.errors import EXIT_INTERRUPTED, EXIT_UNEXPECTED, EXIT_USAGE, UsageError
from faultline.ranks import NeverReady


def main(argv: Sequence[str] | None = None) -> int:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our symbols is no reason to stop
    try:
        args = parser().parse_args(argv)
        return args.command(args)
    except UsageError as error:
        print(f"faultline: {error}", file=sys.stderr)
        return EXIT_USAGE
    except environments.Uninstallable as error:
        print(f"faultline: uninstallable: {error}", file=sys.stderr)
        return EXIT_USAGE
    except NeverReady as error:
        print(f"faultline: this stack can't run the suite: {error}", file=sys.stderr)
        return EXIT_USAGE
    except KeyboardInterrupt:
        print("faultline: interrupted; what was measured is kept, RESUME=1 goes on", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_UNEXPECTED
    except OSError as error:
        print(f"faultline: {error.strerror or error}: {error.filename}; what was measured is kept", file=sys.stderr)
        return EXIT_USAGE


class Parser(argparse.ArgumentParser):
    """Argparse, with its own complaints in one line as all others."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message} (see {self.prog} --help)")


def parser() -> argparse.ArgumentParser:
    top = Parser(prog=report.here("python -m faultline"), description=__doc__)
    verbs = top.add_subparsers(required=True, metavar="COMMAND")

    run = verb(verbs, "run", commands.run, "run cells and hold them against what is expected of them")
    add_selection(run)
    run.add_argument(
        "--stack",
        default=stacks.TODAY,
        metavar="STACK",
        help="a name from stacks/, a date, or requirements such as 'trl==1.12.0' (default: what is installed)",
    )
    run.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="cells at a time (default: the cores)")
    run.add_argument("--resume", action="store_true", help="go on with the newest run")
    run.add_argument("--shard", default="", metavar="I/N", help="run one of N equal parts")
    run.add_argument("--quick", action="store_true", help="one cell of each variant, where its failure shows")

    show_list = verb(verbs, "list", commands.list_cells, "list the cells of a selection, and what is left out and why")
    add_selection(show_list)
    form = show_list.add_mutually_exclusive_group()
    form.add_argument("--ids", action="store_true", help="only ids, one a line")
    form.add_argument(
        "--left-out", action="store_true", help="what the default matrix lacks, one a line, each with the rule"
    )

    show = verb(verbs, "show", commands.show, "show a failure: record, variants, claims, what was measured")
    show.add_argument("failure")

    hit = verb(verbs, "diagnose", diagnose.command, "name the failure that a log shows, and what was measured to help")
    hit.add_argument("logs", nargs="+", metavar="LOG", help="a file, also gzip; several; or - for standard input")
    hit.add_argument("--strategy", default="", metavar="NAMES", help="how it was run, where the log doesn't say")
    hit.add_argument("--checkpointing", default="", metavar="NAMES", help="off, reentrant or non-reentrant")
    hit.add_argument(
        "--stack", default="", metavar="STACK", help="a name from stacks/, a month, or trl==0.15.2 and such"
    )
    hit.add_argument("--json", action="store_true", help="for machines")

    own = verb(verbs, "check", check.command, "train your own model under the strategies and compare with one process")
    own.add_argument("target", metavar="TARGET", help="train.py:build, a config.json, or a model's folder")
    own.add_argument("--lora", default="", metavar="r=8,target=all-linear", help="with an adapter of PEFT")
    place = own.add_mutually_exclusive_group()
    place.add_argument(
        "--stack",
        default=stacks.TODAY,
        metavar="STACK",
        help="on other versions: a name from stacks/, trl==1.12.0, ...",
    )
    place.add_argument("--python", default="", metavar="PATH", help="in your own environment, by its interpreter")
    for axis, names in (
        ("strategy", "such as ddp,zero*,fsdp2 (default: all)"),
        ("checkpointing", "off, reentrant or non-reentrant (default: all)"),
        ("precision", "fp32 (default) or bf16"),
        ("world", "ranks: 1, 2 (default) or 4"),
        ("device", "cpu (default) or cuda"),
    ):
        own.add_argument(f"--{axis}", default="", metavar="NAMES", help=names)
    own.set_defaults(failure="", variant="", cell="")
    own.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="cells at a time (default: the cores)")
    own.add_argument("--json", action="store_true", help="for machines")

    project = verb(verbs, "audit", audit.command, "list the failures whose conditions hold in a training project")
    project.add_argument(
        "files", nargs="*", metavar="FILE", help="requirements, lock files, configs; folders with some; -"
    )
    project.add_argument(
        "--env", action="store_true", help="what is installed in the active environment, as without any file"
    )
    project.add_argument("--python", default="", metavar="PATH", help="what is installed for that interpreter instead")
    project.add_argument("--all", action="store_true", help="what only could apply, too, and on what it hangs")
    project.add_argument("--json", action="store_true", help="for machines")
    project.add_argument("--advisories", action="store_true", help="write advisories/, a file in OSV for each failure")

    out = verb(
        verbs, "export", export.command, "write one file, or one issue, that shows a cell without this repository"
    )
    out.add_argument("cell", metavar="CELL", help="a whole cell id")
    out.add_argument("-o", "--output", default="", metavar="FILE", help="where to (default: standard output)")
    out.add_argument("--force", action="store_true", help="overwrite the file if it is there")
    out.add_argument("--markdown", action="store_true", help="an issue for whoever must fix it, with the file in it")

    proof = verb(verbs, "export-all", export.command_all, "export every cell that fails, and run each file by itself")
    add_selection(proof)
    proof.add_argument("--workers", type=int, default=1, help="files at a time")
    proof.add_argument("--resume", action="store_true", help="keep what was proven before")

    reports = verb(verbs, "reports", export.command_reports, "export and run the upstream report of each failure")
    reports.add_argument("--failure", default="", metavar="NAMES")

    env = verb(verbs, "env", commands.env, "versions, devices and effective settings")
    env.add_argument("--json", action="store_true")

    bless = verb(verbs, "bless", commands.bless, "rewrite expected.toml from a run, as the smallest set of rules")
    bless.add_argument("run", nargs="?", default="", help="a results folder (default: results/latest)")
    bless.add_argument("--failure", default="")
    bless.add_argument("--check", action="store_true", help="only show the difference; exit code 1 if there is one")

    readme = verb(verbs, "readme", commands.readme, "rewrite the measured part of each failure's README from a run")
    readme.add_argument("run", nargs="?", default="")

    record = verb(verbs, "record", recorded.command, "record the errors that runs ended with, which diagnose knows")
    record.add_argument("runs", nargs="+", metavar="RUN", help="folders of results/, with all that is in them")

    verb(verbs, "score", score.command, "say how often diagnose is right, and write it into fixtures/README.md")

    shown = verb(verbs, "report", commands.report, "show a run again and write its page and junit.xml")
    shown.add_argument("run", nargs="?", default="")

    durations = verb(verbs, "durations", commands.durations, "record a run's durations, which balance shards")
    durations.add_argument("run", nargs="?", default="")

    merge = verb(verbs, "merge", commands.merge, "put the shards of a run together and say what is missing")
    merge.add_argument("runs", nargs="+", metavar="RUN")

    again = verb(verbs, "repeat", commands.repeat, "run cells twice and compare every outcome")
    add_selection(again)
    again.add_argument("--workers", type=int, default=os.cpu_count() or 2)

    chaos = verb(verbs, "chaos", commands.chaos, "run random cells while ranks are killed at random moments")
    chaos.add_argument("--cells", type=int, default=200)
    chaos.add_argument("--rate", type=float, default=0.05, help="share of the ranks that is killed")
    chaos.add_argument("--seed", type=int, default=0)
    chaos.add_argument("--workers", type=int, default=os.cpu_count() or 2)

    again = verb(
        verbs, "reproduce", reproduce.command, "show a failure on the stack that it was reported on, and today"
    )
    again.add_argument("failure")
    again.add_argument("--device", default="", metavar="NAME", help="cpu (default) or cuda")

    line = verb(verbs, "timeline", over_time.run, "run cells on the ecosystem as of the first of each month")
    add_selection(line)
    line.add_argument("--since", default="", metavar="DATE", help="the first date (default: the first usable stack's)")
    line.add_argument(
        "--until", default="", metavar="DATE", help="the last date (default: today, and what is installed)"
    )
    line.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    line.add_argument("--resume", action="store_true", help="go on with the newest timeline")
    line.add_argument("--write", action="store_true", help="make it the committed one in timeline/")

    safe = verb(verbs, "is-safe", candidates.command, "run the same cells on a baseline and on a candidate, and say")
    safe.add_argument("requirements", help="requirements such as 'trl==1.12.0', a name from stacks/, or a date")
    safe.add_argument("--base", default=stacks.TODAY, metavar="STACK", help="the baseline (default: what is installed)")
    safe.add_argument("--all", action="store_true", help="the whole default matrix, with the remedies of mechanisms")
    add_selection(safe)
    safe.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    safe.add_argument("--resume", action="store_true", help="go on with the newest is-safe")

    past = verb(verbs, "replay", replay.command, "is-safe over past bumps whose answer is known")
    past.add_argument("names", nargs="*", metavar="NAME", help="of stacks/bumps.toml (default: all)")
    past.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    past.add_argument("--resume", action="store_true", help="go on with the newest replay")

    chart = verb(verbs, "chart", over_time.draw, "draw the committed timeline again, or another one's data")
    chart.add_argument("file", nargs="?", default="")

    halve = verb(verbs, "bisect", bisect.command, "find the release of a package that introduced or fixed a failure")
    add_selection(halve)
    halve.add_argument("--package", required=True, help="any package of the stack")
    direction = halve.add_mutually_exclusive_group()
    direction.add_argument("--introduced", action="store_true", help="find the first release that shows the failure")
    direction.add_argument(
        "--fixed",
        action="store_true",
        help="find the first release that doesn't show it any more (default: either, as the newest does)",
    )
    halve.add_argument(
        "--others",
        choices=("dated", "fixed"),
        default="dated",
        help="the rest of the stack: as of each release's date (default), or what is installed as far as it fits",
    )
    halve.add_argument("--from", dest="oldest", default="", metavar="VERSION", help="default: as of the first stack")
    halve.add_argument("--to", dest="newest", default="", metavar="VERSION", help="default: the newest")
    halve.add_argument("--bad", default="", metavar="OUTCOMES", help="what counts as the failure, such as raises:other")
    halve.add_argument("--blame", action="store_true", help="find which of all changed packages matter")
    halve.add_argument("--workers", type=int, default=os.cpu_count() or 2, help="cells at a time (default: the cores)")
    halve.add_argument("--resume", action="store_true", help="go on with the newest bisect")

    change = verb(verbs, "is-safe-change", commands.is_safe_change, "is-safe of what requirements.txt changes")
    change.add_argument("base_file", metavar="FILE", help="requirements.txt as it was before")

    verb(verbs, "clean-stacks", commands.clean_stacks, "remove the environments of all stacks")
    verb(verbs, "bench", commands.bench, "measure the cost of cells and write bench/README.md")
    return top


def verb(verbs: argparse._SubParsersAction, name: str, command: object, text: str) -> argparse.ArgumentParser:
    added = verbs.add_parser(name, help=text, description=text)
    added.set_defaults(command=command)
    return added


def add_selection(to: argparse.ArgumentParser) -> None:
    """The options that narrow the matrix; each takes names or patterns, with commas between them."""
    for axis in commands.OPTIONS:
        to.add_argument(
            f"--{axis}", default="", metavar="NAMES", help=None if axis != "device" else "cpu (default) or cuda"
        )
    to.add_argument("--cell", default="", metavar="IDS", help="whole cell ids, without any other of these options")
