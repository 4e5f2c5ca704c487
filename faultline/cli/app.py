"""The command line: from words to one call, and from whatever goes wrong to one clear line and an exit code."""

import functools
import inspect
import io
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from importlib import import_module, metadata
from typing import Annotated

from cyclopts import (
    App,
    CycloptsError,
    Group,
    MissingArgumentError,
    Parameter,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from faultline.base.console import harmless
from faultline.base.errors import (
    EXIT_INTERRUPTED,
    EXIT_TERMINATED,
    EXIT_UNEXPECTED,
    EXIT_USAGE,
    NotInstalled,
    Terminated,
    Unavailable,
    UsageError,
    terminate,
    unknown,
)
from faultline.base.paths import INSTALLED, ROOT
from faultline.base.text import LONGEST, cut, similar_names
from faultline.base.traces import machine_remedy as lacking_here
from faultline.base.version import __version__
from faultline.cli import completion as values
from faultline.cli import fleet, lacking, maintain, measure, options, use
from faultline.cli.options import HYPHEN, STDIN, hyphens

USE, MEASURE, KEEP = Group("Use", sort_key=1), Group("Measure", sort_key=2), Group("Maintain", sort_key=3)
EXAMPLES = """
faultline diagnose train.log               a log: the failure, and what helps
faultline check train.py:build             a model: which strategies differ
faultline audit requirements.txt           a project: the failures that apply
faultline is-safe deepspeed==0.19.9        another release: SAFE or NOT SAFE
"""
Command = Callable[..., int]
LAST = 99
BESIDE = ("lab", "website")  # folders of a clone, with verbs.py
OF_A_CLONE = {
    "maintain": "keeps the catalogue",
    "prove": "proves Faultline itself",
    "explore": "looks for new failures",
}
GROUPS: tuple[list[str], ...] = ([], ["fleet"], ["maintain"], ["prove"])  # words that are no command yet


def completion(
    shell: Annotated[values.Shell, Parameter(help="The shell that reads the script.")],
    /,
) -> int:
    """Print the script with which a shell completes all this.

    Put the line of your shell into ~/.bashrc, ~/.zshrc or config.fish.

    The script asks this program for names, and so stays true.

    Examples:
      eval "$(faultline completion bash)"
      source <(faultline completion zsh)
      faultline completion fish | source
    """
    print(values.script(app(), shell))
    return 0


def _beside(group: str) -> tuple[Command, ...]:
    """The commands of a group that stand beside the package, which has them only in a clone."""
    sys.path.insert(0, str(ROOT))  # before somebody's own module of the same name
    try:
        modules = [import_module(f"{name}.verbs") for name in BESIDE if (ROOT / name / "verbs.py").exists()]
    finally:
        sys.path.remove(str(ROOT))
    return tuple(command for module in modules for command in getattr(module, group, ()))


FLEET: tuple[Command, ...] = (fleet.slurm, fleet.merge)
COMMANDS: dict[Group, tuple[Command, ...]] = {
    USE: (
        *(use.diagnose, use.check, use.audit, use.export, use.is_safe, use.bisect, use.reproduce, use.timeline),
        completion,
    ),
    MEASURE: (measure.run, *_beside("MEASURE"), measure.list_, measure.show, measure.report),
}
MAINTAIN: tuple[Command, ...] = (
    *(
        maintain.bless,
        maintain.readmes,
        maintain.record,
        maintain.score,
        maintain.export_all,
        maintain.clean,
        maintain.env,
    ),
    *_beside("MAINTAIN"),
)
PROVE: tuple[Command, ...] = _beside("PROVE")


@functools.cache
def app() -> App:
    """The commands, in the order of the help."""
    plain = Parameter(negative="", show_default=False, allow_repeating=True)  # of two values the last counts
    top = App(
        name="faultline",
        help="An executable catalogue of distributed fine-tuning failures, and of the remedies that help.",
        help_format="plaintext",
        help_epilogue=f"Examples:\n{textwrap.indent(EXAMPLES.strip(), '  ')}\n\nfaultline COMMAND --help has more.",
        version=__version__,
        version_flags=["--version", "-V"],
        default_parameter=plain,
    )
    for group, functions in COMMANDS.items():
        for number, function in enumerate(functions):
            _add(top, function, number, group)
    top["--help"].show = top["--version"].show = False
    top.command(_below("fleet", "Run cells on the nodes of a Slurm cluster.", fleet.EXAMPLES, FLEET, MEASURE))
    if not INSTALLED:  # there is committed data to keep
        top.command(_below("maintain", "Keep the committed data true.", maintain.EXAMPLES, MAINTAIN, KEEP))
        top.command(_below("prove", "Prove and measure Faultline itself.", maintain.PROOFS, PROVE, KEEP))
    return top


def _below(name: str, text: str, examples: str, functions: Sequence[Command], group: Group) -> App:
    """Commands of two words, the first of which they share."""
    below = App(name=name, help=text, help_epilogue=examples, version_flags=[], group=group, sort_key=LAST)
    for number, function in enumerate(functions):
        _add(below, function, number)
    below["--help"].show = False
    return below


def _add(app: App, function: Command, place: int, group: Group | None = None) -> None:
    """Add a command; the examples of its docstring stand below its options."""
    text, _, examples = (inspect.getdoc(function) or "").partition("\n\nExamples:\n")
    app.command(
        function,
        name=word(function),
        help=text,
        help_epilogue=f"Examples:\n{examples}",
        group=group,
        sort_key=place,
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; gives its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our symbols is no reason to stop
    if argv is None:
        sys.stdout, sys.stderr = harmless(sys.stdout), harmless(sys.stderr)
    words = [HYPHEN if word == STDIN else word for word in (sys.argv[1:] if argv is None else argv)]
    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, terminate) if in_main else None
    try:
        command, bound, _ = app().parse_args(words, exit_on_error=False, print_error=False)
        given = {name: hyphens(value) for name, value in bound.kwargs.items()}
        code = command(*map(hyphens, bound.args), **given)
        return code if isinstance(code, int) else EXIT_USAGE if words in GROUPS else 0  # None: the help
    except CycloptsError as error:
        return refuse(message(error).replace(HYPHEN, STDIN))
    except NotInstalled as error:
        return refuse(lacking.stack(error.lacking, command))
    except UsageError as error:
        return refuse(str(error))
    except Unavailable as error:
        return refuse("; ".join((f"{error.what}{error}", *_notes(error))))
    except metadata.PackageNotFoundError as error:
        return refuse(lacking.stack(error.name, command))
    except ModuleNotFoundError as error:
        if not (how := lacking.of_extra(error.name or "")):
            raise
        return refuse(how)
    except RecursionError:
        return refuse("something in what was given is nested too deeply to be read")
    except KeyboardInterrupt as error:
        terminated = isinstance(error, Terminated)
        refuse("; ".join(("ended by SIGTERM" if terminated else "interrupted", *_notes(error))))
        return EXIT_TERMINATED if terminated else EXIT_INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_UNEXPECTED
    except OSError as error:
        place = f": {error.filename}" if error.filename else ""
        return refuse(
            "; ".join(filter(None, (f"{error.strerror or error}{place}", lacking_here(error), *_notes(error))))
        )
    finally:
        if in_main:
            signal.signal(signal.SIGTERM, before)


def refuse(text: str) -> int:
    """Print why something can't be done; gives the exit code that goes with it."""
    print(f"faultline: {cut(text, LONGEST)}", file=sys.stderr)
    return EXIT_USAGE


def _notes(error: BaseException) -> list[str]:
    """What was added to an error on its way: where the results are that were measured before it."""
    return getattr(error, "__notes__", [])


def message(error: CycloptsError) -> str:
    """What is wrong with the words of a command line."""
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        name = " ".join((*(error.command_chain or ()), error.unused_tokens[0].replace(HYPHEN, STDIN)))
        if name.startswith("-"):
            return _unknown_option(name, ["--help", "--version"])
        if name in OF_A_CLONE:
            return f"{name} {OF_A_CLONE[name]}, so it needs a clone of the repository: this is an installed package"
        return str(unknown("command", name, commands(), {"help": "--help"}))
    if isinstance(error, UnknownOptionError):
        name = (error.token.keyword or error.token.value).partition("=")[0].replace(HYPHEN, STDIN)
        return _unknown_option(name, [name for each in error.argument_collection for name in each.names])
    if isinstance(error, ValidationError):
        return error.exception_message
    command = " ".join(error.command_chain or ())
    hint = f" (see faultline {command} --help)"
    if isinstance(error, UnusedCliTokensError):
        takes = error.app.assemble_argument_collection() if error.app else ()
        named = any("--failure" in each.names for each in takes) and options.with_cell(error.unused_tokens or ())
        if named:
            return f"write --failure {named[0]} for the failure, or --cell {named[1]} for a cell that shows it"
        return f"unexpected argument {' '.join(error.unused_tokens or ()).replace(HYPHEN, STDIN)!r}{hint}"
    if isinstance(error, MissingArgumentError) and error.argument:
        return f"{command} needs {error.argument.name}{'' if error.argument.required else ' with a value'}{hint}"
    return f"{str(error).rstrip('.')}{hint}"


def _unknown_option(name: str, known: Sequence[str]) -> str:
    """That there is no such option, with those that are like it; two hyphens alone make none alike."""
    words = similar_names(name.lstrip("-"), [each.lstrip("-") for each in known])
    meant = [each for each in known if each.lstrip("-") in words]
    return f"unknown option {name!r}" + (f"; did you mean {' or '.join(meant)}?" if meant else ", and none is like it")


def commands() -> list[str]:
    """The name of every command, as it is typed."""
    daily = [word(function) for functions in COMMANDS.values() for function in functions]
    daily += [f"fleet {word(function)}" for function in FLEET]
    beside = [f"maintain {word(function)}" for function in MAINTAIN] + [f"prove {word(function)}" for function in PROVE]
    return daily if INSTALLED else daily + beside


def word(function: Command) -> str:
    return function.__name__.strip("_").replace("_", "-")
