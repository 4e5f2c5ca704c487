"""The trainings that the commands of a script start: what launchers, flags and named configs say of each."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import NamedTuple

from faultline.audit import arguments, defaults, engines, hydra, modules, shell
from faultline.audit.defaults import TRANSFORMERS
from faultline.audit.engines import OTHER_TRAINER, UNNAMED, Statement, truth
from faultline.audit.shell import ENGINES, Command
from faultline.base.text import one_line
from faultline.projects.documents import Document, Section

# Flags of `accelerate launch` that stand at the top of its config, and those of its plugin.
TOP = ("mixed_precision",)
PLUGIN = ("zero_stage", "offload_optimizer_device", "offload_param_device", "deepspeed_config_file")
CONFIG_FILES = ("config", "config_file")  # of TRL, ms-swift and accelerate
NAMED = re.compile(r"\.(?:ya?ml|json|py)$")


class Training(NamedTuple):
    """A command that trains: what it says, the files that it names, and its place or the config that it names; whether
    any of accelerate's configs may be what it is launched with."""

    statements: tuple[Statement, ...]
    names: frozenset[Path]
    title: str
    any_launch: bool


def trainings(document: Document) -> Iterator[Training]:
    """The commands of a script that train.

    A page shows many commands, of which those count that name a file of the project.
    """
    if len(document.text) > shell.LONGEST:
        return
    page = document.name.endswith(".md")
    for command in shell.commands(replace(document, text=shell.fenced(document.text)) if page else document):
        flags = {key: value for key, value in command.flags.items() if isinstance(value, str)}
        launched = flags.pop("config_file", "")
        words = [*command.words, *_of_modules(command.words)]
        named = [word for word in (launched, *words, *flags.values()) if NAMED.search(word)]
        located = {word: next(engines.located(document, word), None) for word in named}
        names = {place[0].resolve(): place[1] for word, place in located.items() if place and word != launched}
        program = next((located[word] for word in words if word.endswith(".py") and located[word]), None)
        hidden = not program and any(word.endswith(".py") for word in command.words)
        statements = tuple(_fitting(_stated(command, program), program, hidden))
        if any(not each.default for each in statements) and (names or not page):
            line = f"{one_line(document.name)}:{min(command.document.lines.values(), default=command.line)}"
            configs = [shown for path, shown in names.items() if path.suffix in (".yaml", ".yml")]
            launcher = [place[0].resolve() for word, place in located.items() if place and word == launched]
            title = f"{configs[-1]} ({line})" if configs else line
            any_launch = _by_accelerate(command) and "config_file" in command.unknown
            yield Training(statements, frozenset([*names, *launcher]), title, any_launch)


def _of_modules(words: Sequence[str]) -> Iterator[str]:
    """The files of the modules that a command runs: ``a/b.py`` for ``-m a.b``."""
    for option, module in itertools.pairwise(words):
        if option == "-m" and re.fullmatch(r"\w+(?:\.\w+)+", module):
            yield f"{module.replace('.', '/')}.py"
            yield f"{module.replace('.', '/')}/__main__.py"


def _fitting(statements: Iterable[Statement], program: tuple[Path, str] | None, hidden: bool) -> Iterator[Statement]:
    """The statements of flags, without those that only TRL or transformers reads, where a program uses neither; one
    that is hidden may have a trainer of its own."""
    trl, transformers = modules.libraries(*program) if program else (True, True)
    for each in statements:
        of_transformers = each.axis == UNNAMED or (each.default and each.default.framework == TRANSFORMERS)
        if (trl or not (each.shared or each.axis == "reference model")) and (transformers or not of_transformers):
            yield replace(each, values=each.values | {OTHER_TRAINER}) if hidden and each.shared else each


def _stated(command: Command, program: tuple[Path, str] | None) -> Iterator[Statement]:
    """The statements of a command's launcher, flags and named config, and the defaults of what its program parses."""
    document = command.document
    flags = dict(command.flags)
    yield from _launched(command)
    launched = _by_accelerate(command)
    configs = {word: "" for word in command.words if word.endswith((".yaml", ".yml", ".json"))}
    configs |= {str(flags[key]): key for key in CONFIG_FILES if isinstance(flags.get(key), str)}
    more = command.more or "config" in command.unknown
    for name, key in configs.items():
        config = engines.named_config(document, name)
        yield from (arguments.read(config.document) or ("", []))[1] if config else ()
        more = more or not (config or (launched and key == "config_file"))
    if flags.get("deepspeed") is True and "deepspeed_config" in flags:  # DeepSpeed's own two arguments
        flags["deepspeed"] = flags["deepspeed_config"]
    config = engines.named_config(document, hydra.config_of(command.words, flags))
    verl = {**(hydra.of_config(config.document) if config else {}), **hydra.of_words(command.words, document)}
    yield from hydra.stated(verl)
    trainer = _trainer(command.words)
    lines = dict(document.lines)
    if trainer == OTHER_TRAINER:
        place = replace(document.place(min(lines.values(), default=1)), text=" ".join(command.words[:2]))
        yield Statement("trainer", frozenset([trainer]), place)
    elif trainer:
        flags["trainer"] = trainer
        lines["trainer"] = min(lines.values(), default=1)
    of_script = {key: value for key, value in flags.items() if key not in {*ENGINES, *PLUGIN}}
    if launched:
        of_script = {
            key: value for key, value in of_script.items() if not key.startswith("fsdp_") or key == "fsdp_config"
        }
    unsaid = {*arguments.KWARGS, "fsdp_config", engines.ANYTHING} - flags.keys() if more else set()
    of_script |= {key: value for key, (value, _) in verl.items() if "." in key}
    section = Section(replace(document, lines=lines), of_script, unknown=command.unknown | unsaid)
    overrides = modules.parsed_overrides(*program) if program else None
    framework = defaults.by_command([*command.words, str(flags.get("module"))])
    yield from arguments.stated(
        section, framework or ("" if overrides is None else TRANSFORMERS), overrides or frozenset()
    )


def _by_accelerate(command: Command) -> bool:
    return any(re.match(r"accelerate(?:-launch|\.commands\.launch)?$", PurePath(word).name) for word in command.words)


def _launched(command: Command) -> Iterator[Statement]:
    """The statements of the flags of `accelerate launch`, which are those of its config."""
    key = next((key for key in ENGINES if truth(command.flags.get(key))), "")
    if not key or not _by_accelerate(command):
        return
    kind, place = ENGINES[key], command.document.at(key)
    plugin = {name: value for name, value in command.flags.items() if name in PLUGIN}
    sharding = {name: value for name, value in command.flags.items() if name.startswith("fsdp_")}
    relevant = {"use_fsdp": {n for n in command.unknown if n.startswith("fsdp_")}, "use_deepspeed": {*PLUGIN}}
    if command.unknown & relevant.get(key, set()):
        yield Statement("strategy", engines.of_engine(kind), replace(place, text=f"--{key}"))
        return
    data = {"distributed_type": kind, "deepspeed_config": plugin or {"zero_stage": 2}, "fsdp_config": sharding}
    data["parallelism_config"] = {n: v for n, v in command.flags.items() if n.startswith("parallelism_config_")}
    top = {name: command.flags[name] for name in TOP if name in command.flags}
    lines = {**command.document.lines, "distributed_type": place.line}
    yield from engines.accelerate(Section(replace(command.document, lines=lines), {**data, **top}))


def _trainer(words: Sequence[str]) -> str:
    """The trainer of a command such as `trl grpo` or `swift sft`, whose trainer isn't TRL's."""
    for program, verb in itertools.pairwise(words):
        if PurePath(program).name == "trl" and verb not in ("env", "vllm-serve", "skills"):
            return verb
        if PurePath(program).name == "swift" and verb in ("sft", "pt"):
            return OTHER_TRAINER
    if any(re.search(r"\bswift/cli/(?:sft|pt)\.py$", word) for word in words):
        return OTHER_TRAINER
    scripts = (re.search(r"\btrl[./]scripts[./](\w+?)(?:\.py)?$", word) for word in words)
    return next((script[1] for script in scripts if script), "")
