"""The flags of the commands in a shell script that train; nothing is run, and what a variable would be isn't known."""

import itertools
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from faultline.audit import arguments, defaults, engines
from faultline.audit.engines import OTHER_TRAINER, Statement, truth
from faultline.base.text import one_line
from faultline.projects.documents import Document, Section

LONGEST = 200_000  # characters of a script
LINES = 300  # of one command
WORDS = 2000  # of one command
VALUE = 1000  # characters of a variable's value: a command may name it often
DEEPEST = 20  # commands within each other
LAUNCHERS = re.compile(
    r"accelerate(?:-launch)?|torchrun|deepspeed|swift|trl|llamafactory-cli|axolotl|python[\d.]*|uv|"
    r"torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|\S+\.py"
)
ASSIGNED = re.compile(r"^[ \t]*(?:export[ \t]+)?(\w+)=(.*)$", re.MULTILINE)
PLAIN = re.compile(r"""(?:"([^"$`\\]*)"|'([^']*)'|([\w./:@%+,-]*))[ \t]*(?:#.*)?""")
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e-?\d+)?", re.IGNORECASE)
# Flags of `accelerate launch` that stand at the top of its config, and those that give an engine and take no value.
TOP = ("mixed_precision",)
ENGINES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU", "use_megatron_lm": "MEGATRON_LM"}
PLUGIN = ("zero_stage", "offload_optimizer_device", "offload_param_device", "deepspeed_config_file")
CONFIG_FILES = ("config", "config_file")  # of TRL, ms-swift and accelerate
QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?:^|(?<=\s))#[^\n]*""", re.DOTALL | re.MULTILINE)
HERE = re.compile(r"""<<-?[ \t]*(['"]?)(\w+)\1""")  # a document begins, up to a line of that word
INNER = re.compile(r"\$\([^()]*\)|`[^`]*`")  # a command within a command
NAMED = re.compile(r"\.(?:ya?ml|json|py)$")
ALL = ("$@", "$*", "${@}", "${*}")


@dataclass(frozen=True)
class Command:
    """A command that may train: its words beside flags, its flags, and those whose values aren't known.

    A flag without a value is true. `document` has the flags' lines. There may be `more` flags, in a variable.
    """

    document: Document
    words: tuple[str, ...]
    flags: Mapping[str, object]
    unknown: frozenset[str]
    more: bool
    line: int = 1


def read(document: Document) -> list[list[Statement]]:
    """What each command of a script says, of those that say something of a training."""
    return [statements for statements, _, _ in trainings(document)]


def trainings(document: Document) -> Iterator[tuple[list[Statement], frozenset[Path], str]]:
    """As `read`, with the files that each command names, and its place or the config that it names.

    A page shows many commands, of which those count that name a file of the project.
    """
    if len(document.text) > LONGEST:
        return
    page = document.name.endswith(".md")
    for command in commands(replace(document, text=_fenced(document.text)) if page else document):
        statements = [*_stated(command)]
        flags = {key: value for key, value in command.flags.items() if isinstance(value, str)}
        launched = flags.pop("config_file", "")
        words = [word for word in (launched, *command.words, *flags.values()) if NAMED.search(word)]
        located = {word: next(engines.located(document, word), None) for word in words}
        names = {place[0].resolve(): place[1] for word, place in located.items() if place and word != launched}
        if any(not each.default for each in statements) and (names or not page):
            line = f"{one_line(document.name)}:{min(command.document.lines.values(), default=command.line)}"
            configs = [shown for path, shown in names.items() if path.suffix in (".yaml", ".yml")]
            launcher = [place[0].resolve() for word, place in located.items() if place and word == launched]
            yield statements, frozenset([*names, *launcher]), f"{configs[-1]} ({line})" if configs else line


def _fenced(text: str) -> str:
    """A page of Markdown with empty lines in place of what is no block of code."""
    inside, lines = False, []
    for line in text.split("\n"):
        fence = line.lstrip().startswith("```")
        lines.append(re.sub(r"^\s*\$ ", "", line) if inside and not fence else "")
        inside ^= fence
    return "\n".join(lines)


def commands(document: Document) -> Iterator[Command]:
    """The commands of a script that start a known launcher or a Python file."""
    script = _without_documents(document.text)
    values = _variables(script)
    for start, commented in _logical(script):
        text = _without_comments(commented)
        try:
            inner = _without_inner(text)
            whole = VARIABLE.sub(lambda v: values.get(v[1] or v[2], v[0]), inner)
            words = _words(whole if len(whole) <= LONGEST else inner)
        except ValueError:  # a quotation that doesn't end
            continue
        for each in _split(words):
            if any(LAUNCHERS.fullmatch(PurePath(word).name) or LAUNCHERS.fullmatch(word) for word in each[:4]):
                yield _command(document, each[:WORDS], start, text)


def _without_documents(text: str) -> str:
    """A script with empty lines in place of its here-documents; one without an end is no document."""
    lines = text.split("\n")
    ends = {line.strip(" \t"): number for number, line in enumerate(lines)}  # the last line of each content
    word = ""
    for number, line in enumerate(lines):
        if word and line.strip(" \t") != word:
            lines[number] = ""
            continue
        begun = None if word else HERE.search(line)
        word = begun[2] if begun and ends.get(begun[2], 0) > number else ""
    return "\n".join(lines)


def _variables(text: str) -> dict[str, str]:
    """The variables that a script gives one plain value."""
    assigned: dict[str, list[str]] = {}
    for name, value in ASSIGNED.findall(text):
        plain = PLAIN.fullmatch(value.strip())
        assigned.setdefault(name, []).append(next(filter(None, plain.groups()), "") if plain else "$")
    once = {name: values[0] for name, values in assigned.items() if len(values) == 1}
    return {name: value for name, value in once.items() if 0 < len(value) <= VALUE and "$" not in value}


def _logical(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a script, each with its number; one that goes on, by a backslash or in a quotation, as a whole."""
    pending: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        pending.append(line)
        whole = "\n".join(pending)
        # A comment between the lines of a command, which ends it for the shell, is taken as if it weren't there.
        comment = line.lstrip().startswith("#") and len(pending) > 1 and pending[-2].endswith("\\")
        if len(pending) < LINES and (line.endswith("\\") or comment):
            pending[-1] = f"{line}\\" if comment and not line.endswith("\\") else line
            continue
        if len(pending) < LINES and not _closed(whole):
            continue
        yield number - len(pending) + 1, whole
        pending = []
    if pending:
        yield text.count("\n") + 2 - len(pending), "\n".join(pending)


def _without_inner(text: str) -> str:
    """A command with a variable in place of the commands within it, as many lines long."""
    for _ in range(DEEPEST):
        text = INNER.sub(lambda inner: "$_" + "\\\n" * inner[0].count("\n"), text)
    return text


def _closed(text: str) -> bool:
    """Whether every quotation of a text ends."""
    return not re.search("['\"]", QUOTED.sub("", text))


def _without_comments(text: str) -> str:
    return QUOTED.sub(lambda part: "" if part[0].startswith("#") else part[0], text)


def _words(text: str) -> list[str]:
    """A command's words without quotes, and what separates commands; raises ValueError for an open quotation."""
    lexer = shlex.shlex(re.sub(r"\\\n", " ", text), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split, lexer.commenters = True, ""
    return [*lexer]


def _split(words: Sequence[str]) -> Iterator[list[str]]:
    """The commands between separators, without what stands before the program."""
    command: list[str] = []
    for word in (*words, ";"):
        if re.fullmatch(r"[;&|]+", word):
            if command:
                yield command
            command = []
        elif command or not re.fullmatch(r"\w+=.*|if|then|else|elif|do|while|time|exec|nohup|srun|env|sudo|\{|!", word):
            command.append(word)


def _command(document: Document, words: Sequence[str], start: int, text: str) -> Command:
    flags: dict[str, list[object]] = {}
    named: list[str] = []
    lines: dict[str, int] = {}
    more = False
    key = ""
    for word in words:
        flag = re.fullmatch(r"--?([A-Za-z][\w.-]+)(?:=(.*))?", word, re.DOTALL)
        if flag:
            key = flag[1].replace("-", "_")
            flags[key] = [] if flag[2] is None else [_value(flag[2])]
            written = re.search(rf"(?<![\w-]){re.escape(word.partition('=')[0])}(?![\w-])", text)
            lines[key] = start + text.count("\n", 0, written.start() if written else 0)
            key = key if flag[2] is None and key not in ENGINES else ""
        elif _open(word) and (word in ALL or (flags and not (key and not flags[key]))):
            more = True
        elif key and not re.fullmatch(r"-[A-Za-z]", word) and not (flags[key] and word.endswith(".py")):
            flags[key].append(_value(word))
        else:  # the script, or the module that -m names
            key = ""
            named.append(word)
    unknown = {key for key, values in flags.items() if any(map(_open, values))}
    known = {key: _only(values) for key, values in flags.items() if key not in unknown}
    return Command(replace(document, lines=lines), tuple(named), known, frozenset(unknown), more, start)


def _only(values: Sequence[object]) -> object:
    """The value of a flag: true without one, and a list of several."""
    return (values[0] if len(values) == 1 else [*values]) if values else True


def _open(value: object) -> bool:
    """Whether a value has a variable or another command in it."""
    return isinstance(value, str) and ("$" in value or "`" in value)


def _value(word: str) -> object:
    if NUMBER.fullmatch(word):
        return float(word) if re.search(r"[.eE]", word) else int(word[:300])
    return word


def _stated(command: Command) -> Iterator[Statement]:
    """What a command's launcher, flags and named config say."""
    document = command.document
    flags = dict(command.flags)
    yield from _launched(command)
    for word in command.words:
        if word.endswith((".yaml", ".yml", ".json")):
            yield from _named(document, word)
    if flags.get("deepspeed") is True and "deepspeed_config" in flags:  # DeepSpeed's own two arguments
        flags["deepspeed"] = flags["deepspeed_config"]
    for key in CONFIG_FILES:
        if isinstance(flags.get(key), str):
            yield from _named(document, str(flags[key]))
    trainer = _trainer(command.words)
    lines = dict(document.lines)
    if trainer == OTHER_TRAINER:
        place = replace(document.place(min(lines.values(), default=1)), text=" ".join(command.words[:2]))
        yield Statement("trainer", frozenset([trainer]), place)
    elif trainer:
        flags["trainer"] = trainer
        lines["trainer"] = min(lines.values(), default=1)
    of_script = {key: value for key, value in flags.items() if key not in {*ENGINES, *PLUGIN}}
    if _by_accelerate(command):
        of_script = {
            key: value for key, value in of_script.items() if not key.startswith("fsdp_") or key == "fsdp_config"
        }
    unsaid = {*arguments.KWARGS, "fsdp_config", defaults.ANYTHING} - flags.keys() if command.more else set()
    section = Section(replace(document, lines=lines), of_script, unknown=command.unknown | unsaid)
    yield from arguments.stated(section, defaults.by_command([*command.words, str(flags.get("module"))]))


def _by_accelerate(command: Command) -> bool:
    return any(re.match(r"accelerate(?:-launch|\.commands\.launch)?$", PurePath(word).name) for word in command.words)


def _launched(command: Command) -> Iterator[Statement]:
    """What the flags of `accelerate launch` say, which are those of its config."""
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


def _named(document: Document, name: str) -> Iterator[Statement]:
    """What a config says that a command names, if it is there."""
    if config := engines.beside(document, name):
        yield from (arguments.read(config.document) or ("", []))[1]


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
