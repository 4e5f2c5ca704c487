"""The flags of the commands in a shell script that train; nothing is run, and what a variable would be isn't known."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from faultline.projects.documents import Document

LONGEST = 200_000  # characters of a script
LINES = 300  # of one command
WORDS = 2000  # of one command
VALUE = 3000  # characters of a variable's value
FILLED = 1_000_000  # characters that the values of variables add to all commands
DEEPEST = 20  # commands, or variables, within each other
LAUNCHERS = re.compile(
    r"accelerate(?:-launch)?|torchrun|deepspeed|swift|trl|llamafactory-cli|axolotl|python[\d.]*|uv|"
    r"torch\.distributed\.(?:run|launch)|accelerate\.commands\.launch|\S+\.py"
)
PRINTS = ("echo", "printf")
STARTERS = ("srun", "sudo", "numactl")  # whose own options stand before the program
ASSIGNED = re.compile(r"[ \t]*(?:export[ \t]+)?(\w+)=(.*)", re.DOTALL)
PLAIN = re.compile(r"""(?:"((?:[^"`\\]|\\.)*)"|'([^']*)'|([\w./:@%+,${}-]*))[ \t]*(?:#.*)?""", re.DOTALL)
VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
# Flags of `accelerate launch` that give an engine and take no value.
ENGINES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU", "use_megatron_lm": "MEGATRON_LM"}
NUMBER = re.compile(r"-?\d+(?:\.\d*)?(?:e-?\d+)?", re.IGNORECASE)
QUOTED = re.compile(r"""\\.|'[^']*'|"(?:\\.|[^"\\])*"|(?:^|(?<=\s))#[^\n]*""", re.DOTALL | re.MULTILINE)
HERE = re.compile(r"""<<-?[ \t]*(['"]?)(\w+)\1""")  # a document begins, up to a line of that word
INNER = re.compile(r"[$<>]\([^()]*\)|`[^`]*`")  # a command within a command
ALL = re.compile(r"\$(?:[@*]|\{(?:\w+\[)?[@*]\]?\})")
REDIRECTED = re.compile(r"\d*(?:>>?|<)")
PLACEHOLDER = re.compile(r"<[^<>]+>")


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


def fenced(text: str) -> str:
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
    added = 0
    for start, commented in _logical(script):
        text = _without_comments(commented)
        inner = _without_inner(text)
        filled = _filled(inner, values)
        added += len(filled) - len(inner)
        try:
            words = _words(filled if added <= FILLED else inner)
        except ValueError:  # a quotation that doesn't end
            continue
        for each in _split(words):
            if each[0] not in PRINTS and any(
                LAUNCHERS.fullmatch(PurePath(word).name) or LAUNCHERS.fullmatch(word) for word in each[:4]
            ):
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
    """The variables that a script gives one value, which may name others."""
    assigned: dict[str, list[str]] = {}
    for _, line in _logical(text):
        if named := ASSIGNED.fullmatch(line):
            plain = PLAIN.fullmatch(_without_inner(named[2].strip()))
            value = next(filter(None, plain.groups()), "") if plain else "$"
            assigned.setdefault(named[1], []).append(value.replace("\\\n", " "))
    once = {name: values[0] for name, values in assigned.items() if len(values) == 1 and 0 < len(values[0]) <= VALUE}
    for _ in range(DEEPEST):
        filled = {name: _filled(value, once) for name, value in once.items()}
        if filled == once or max(map(len, filled.values()), default=0) > VALUE:
            break
        once = filled
    return {name: value for name, value in once.items() if value != "$"}


def _filled(text: str, values: Mapping[str, str]) -> str:
    """A text with the values of its variables, as far as they are known; as it is, if that is too long."""
    named = [each[1] or each[2] for each in VARIABLE.finditer(text)]
    if sum(len(values.get(name, "")) for name in named) > LONGEST:
        return text
    return VARIABLE.sub(lambda v: values.get(v[1] or v[2], v[0]), text)


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
    """The commands between separators, without redirections and what stands before the program."""
    command: list[str] = []
    starter = opened = False
    for word in (*words, ";"):
        if re.fullmatch(r"[;&|]+|--", word):
            if command:
                yield command
            command, starter, opened = [], False, False
        elif opened or (REDIRECTED.match(word) and not PLACEHOLDER.fullmatch(word)):
            opened = not opened and bool(re.fullmatch(r"\d*(?:>>?|<)", word))  # its file is the next word
        elif command or not (_precedes_program(word) or (starter and not LAUNCHERS.fullmatch(PurePath(word).name))):
            command.append(word)
        starter = starter or (not command and word in STARTERS)


def _precedes_program(word: str) -> bool:
    """Whether a word stands before a program."""
    return word in STARTERS or bool(
        re.fullmatch(r"\w+=.*|if|then|else|elif|do|while|time|exec|eval|nohup|env|\{|!", word, re.DOTALL)
    )


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
        elif _open(word) and (ALL.fullmatch(word) or (flags and not (key and not flags[key]))):
            more = True
        elif key and not re.fullmatch(r"-[A-Za-z]", word) and not (flags[key] and word.endswith(".py")):
            flags[key].append(_value(word))
        else:  # the script, or the module that -m names
            key = ""
            named.append(word)
    unknown = {key for key, values in flags.items() if any(map(_open, values))}
    known = {key: _flag_value(values) for key, values in flags.items() if key not in unknown}
    return Command(replace(document, lines=lines), tuple(named), known, frozenset(unknown), more, start)


def _flag_value(values: Sequence[object]) -> object:
    """The value of a flag: true without one, and a list of several."""
    return (values[0] if len(values) == 1 else [*values]) if values else True


def _open(value: object) -> bool:
    """Whether a value has a variable or another command in it."""
    return isinstance(value, str) and ("$" in value or "`" in value)


def _value(word: str) -> object:
    if NUMBER.fullmatch(word):
        return float(word) if re.search(r"[.eE]", word) else int(word[:300])
    return word
