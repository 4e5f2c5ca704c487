"""The arguments of configs in Python code, where they are literals; the code is parsed, and never run."""

import ast
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from faultline.audit import arguments, defaults, engines
from faultline.audit.engines import Statement
from faultline.base.errors import UsageError
from faultline.projects.documents import Document, Section

LONGEST = 500_000  # characters of a file
MOST = 100  # trainings of a file
INTERESTING = re.compile(r"(?:Config|TrainingArguments|Accelerator|Plugin|Trainer)\(")
CONDITIONAL = (ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.ExceptHandler, ast.comprehension)
TRAINER = re.compile(r"Trainer$")
CLASS = "("  # stands for the call itself among the lines of its arguments
PLUGINS = {"fsdp_plugin": "FullyShardedDataParallelPlugin", "deepspeed_plugin": "DeepSpeedPlugin"}
# What PEFT's LoraConfig calls its settings, and TRL's scripts.
LORA = {
    "r": "lora_r",
    "lora_alpha": "lora_alpha",
    "target_modules": "lora_target_modules",
    "target_parameters": "lora_target_parameters",
    "modules_to_save": "lora_modules_to_save",
}
SETTINGS = arguments.ARGUMENTS | {*arguments.TRAINERS_BY_SETTING, *arguments.KWARGS, "beta", "max_grad_norm"}
REST = (*arguments.KWARGS, "fsdp_config")  # what ** may set, and whose absence says something


@dataclass(frozen=True)
class Call:
    """A call of a class: its arguments that are literals, those that aren't, and their lines."""

    name: str
    known: Mapping[str, object]
    unknown: frozenset[str]
    lines: Mapping[str, int]


def read(document: Document) -> list[list[Statement]]:
    """What each training of a file says, by the calls that make its arguments; several are alternatives."""
    if len(document.text) > LONGEST or not INTERESTING.search(document.text):
        return []
    try:
        with warnings.catch_warnings(action="ignore"):  # of the code's own texts
            tree = ast.parse(document.text)
            calls = [*_calls(tree)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    trainings = [  # a class of one's own has defaults of its own
        replace(call, unknown=call.unknown | {defaults.ANYTHING}) if call.name in defined else call
        for call in calls
        if _makes_arguments(call)
    ]
    if len(trainings) > MOST:
        raise UsageError(f"{document.name} makes the arguments of more than {MOST} trainings")
    shared = [*_accelerators(document, calls)]
    adapters = [call for call in calls if call.name == "LoraConfig"]
    made_of = _own_trainers(tree)
    made = dict.fromkeys(call.name for call in calls)
    each = [
        [*_training(document, call, adapters, made, made_of), *shared]
        for call in trainings or [Call("", {}, frozenset(), {})]
    ]
    return [statements for statements in each if any(not statement.default for statement in statements)]


def _own_trainers(tree: ast.AST) -> dict[str, str]:
    """The trainers that the classes of a file are made of, by the names of these classes."""
    bases = {
        node.name: [_name(base) for base in node.bases] for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    }
    made_of: dict[str, str] = {}
    for name in bases:
        base, seen = name, {name}
        while base in bases:
            base = next(
                (each for each in bases[base] if each not in seen and (each in bases or TRAINER.search(each))), ""
            )
            seen.add(base)
        if base:
            made_of[name] = base
    return made_of


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _calls(tree: ast.AST) -> Iterator[Call]:
    """The calls that are reached whatever a condition says, in the order of the file."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield _call(node)
        if not isinstance(node, CONDITIONAL) or _is_program(node):
            yield from _calls(node)


def _is_program(node: ast.AST) -> bool:
    """Whether it is ``if __name__ == "__main__"``."""
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"


def _call(node: ast.Call) -> Call:
    name = _name(node.func)
    known: dict[str, object] = {}
    unknown: set[str] = set()
    lines = {CLASS: node.lineno}
    for keyword in node.keywords:
        if keyword.arg is None:
            unknown.update((*REST, defaults.ANYTHING))
            continue
        lines[keyword.arg] = keyword.value.lineno
        try:
            known[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            unknown.add(keyword.arg)
    return Call(name, known, frozenset(unknown - known.keys()), lines)


def _makes_arguments(call: Call) -> bool:
    """Whether a call makes the arguments of a training, as other configs don't."""
    if call.name.endswith("TrainingArguments"):
        return True
    return call.name.endswith("Config") and bool(SETTINGS & {*call.known, *call.unknown})


def _training(
    document: Document, call: Call, adapters: Sequence[Call], made: Collection[str], made_of: Mapping[str, str]
) -> Iterator[Statement]:
    """What the arguments of a training say, with the adapter of its file, and the trainer by its class among all that
    are `made` in it, which may be made of another, as `made_of` says."""
    data, lines, unknown = dict(call.known), dict(call.lines), set(call.unknown)
    for adapter in adapters:
        for name, key in LORA.items():
            if name in adapter.unknown or (key in data and data[key] != adapter.known.get(name)):
                unknown.add(key)
            elif name in adapter.known:
                data[key], lines[key] = adapter.known[name], adapter.lines[name]
    if adapters:
        data["use_peft"], lines["use_peft"] = True, adapters[0].lines[CLASS]
    named = {made_of[name] for name in made if name in made_of} or {name for name in made if TRAINER.search(name)}
    data[arguments.SUBCLASS] = any(name in made_of for name in made)
    if call.name.endswith("Config") and not data[arguments.SUBCLASS]:
        named = {call.name.removesuffix("Config")}
    if len(named) == 1:
        data["trainer"], lines["trainer"] = named.pop(), call.lines.get(CLASS, 1)
    for key in unknown & data.keys():
        del data[key]
    framework = defaults.TRANSFORMERS if call.name.endswith("TrainingArguments") else ""
    yield from arguments.stated(Section(replace(document, lines=lines), data, unknown=frozenset(unknown)), framework)


def _accelerators(document: Document, calls: Sequence[Call]) -> Iterator[Statement]:
    """What the only Accelerator of a file and its plugins say."""
    made = [call for call in calls if call.name == "Accelerator"]
    if len(made) != 1:
        return
    accelerator = Section(replace(document, lines=made[0].lines), made[0].known)
    if "mixed_precision" in accelerator.data:
        yield from engines.precision(accelerator, "mixed_precision", str(accelerator.get("mixed_precision")))
    yield from engines.accumulation(accelerator)
    for name, plugin in PLUGINS.items():
        given = [call for call in calls if call.name == plugin]
        if name in made[0].lines and len(given) == 1:
            yield from _plugin(document, given[0])


def _plugin(document: Document, plugin: Call) -> Iterator[Statement]:
    """What a plugin for FSDP or DeepSpeed says; only the engine, where a setting of it isn't known."""
    sharded = plugin.name == PLUGINS["fsdp_plugin"]
    kind = "FSDP" if sharded else "DEEPSPEED"
    config = Section(replace(document, lines=plugin.lines), plugin.known)
    place = replace(document.place(plugin.lines[CLASS]), text=plugin.name)
    if plugin.unknown:
        yield Statement("strategy", engines.of_engine(kind), place)
    elif sharded:
        yield from engines.fsdp(config, place, default=1)
    elif isinstance(config.get("hf_ds_config"), dict):
        yield from engines.deepspeed(config.section("hf_ds_config"))
    elif isinstance(config.get("hf_ds_config"), str):
        yield from engines.deepspeed_file(config, "hf_ds_config")
    else:
        yield from engines.deepspeed_plugin(config, place)
