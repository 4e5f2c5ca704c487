"""The settings of a training in Python code: literal arguments and assignments; it is parsed, and never run."""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from faultline.audit import arguments, engines, modules
from faultline.audit.defaults import TRANSFORMERS
from faultline.audit.engines import IN_CODE, NORM, OTHER_TRAINER, SHARDED, UNNAMED, Statement
from faultline.audit.modules import Known, Overrides, SourceFile, TrainerClass
from faultline.base.errors import UsageError
from faultline.projects.documents import Document, Place, Section

MOST = 100  # trainings of a file
SHORT = 5000  # characters of a program that only starts another
INTERESTING = re.compile(r"(?:Config|TrainingArguments|Accelerator|Plugin)\(|Trainer\b")
CONDITIONAL = (ast.If, ast.IfExp, ast.BoolOp, ast.Match, ast.ExceptHandler, ast.comprehension)
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
# Attributes and fields of arguments, and what they decide.
DECIDES = {"gradient_checkpointing_kwargs": UNNAMED, "max_grad_norm": NORM}
# Methods, and what they decide, the first if they are given anything.
METHODS = {"gradient_checkpointing_enable": UNNAMED, "set_state_dict_type": SHARDED}
CONFIG_CLASS = re.compile(r"(?:TrainingArguments|Config)$")
Tests = tuple[ast.expr, ...]


@dataclass(frozen=True)
class Call:
    """A call of a class: its arguments that are literals, those that aren't, and their lines; whether it is `always`
    reached where its function is called."""

    name: str
    known: Mapping[str, object]
    unknown: frozenset[str]
    lines: Mapping[str, int]
    always: bool = True


def trainings(document: Document, follow: bool = True) -> list[tuple[list[Statement], frozenset[Path]]]:
    """The statements of each training of a file, by the calls that make its arguments; several are alternatives. With
    each are the other files of the project that say something of it: a trainer's class, or all of the training, if a
    program only starts what it imports."""
    if not INTERESTING.search(document.text) and not (follow and len(document.text) < SHORT):
        return []
    module = modules.parsed(document)
    try:
        return _of_module(module, follow) if module else []
    except RecursionError:
        return []


def _of_module(module: SourceFile, follow: bool) -> list[tuple[list[Statement], frozenset[Path]]]:
    document, calls = module.document, [*_calls(module.tree)]
    makes = [call for call in calls if _makes_arguments(call)]
    if len(makes) > MOST:
        raise UsageError(f"{document.name} makes the arguments of more than {MOST} trainings")
    shared = [*_accelerators(document, calls), *assignments(document, module.tree)]
    adapters = [call for call in calls if call.name == "LoraConfig" and call.always]
    trainers = _trainers(module, calls)
    paths = frozenset(path for made in trainers for path in made.paths)
    known, none = Overrides(), Call("", {}, frozenset(), {})
    each = [[*_training(module, call, adapters, trainers, known), *shared] for call in makes or [none]]
    stated = [(one, paths) for one in each if any(not each.default and each.axis != IN_CODE for each in one)]
    if stated or not follow:
        return stated
    others = [(other.document, other.document.path.resolve()) for other in modules.starts(module)]
    return [(one, paths | {path}) for other, path in others for one, paths in trainings(other, follow=False)]


def _trainers(module: SourceFile, calls: Sequence[Call]) -> list[TrainerClass]:
    """The trainer classes of a program: those that it makes whatever a condition says, or else any; or
    those that a variable stands for."""
    known: Known = {}
    defined, nodes = module.classes, [*ast.walk(module.tree)]
    every = [modules.name_of(node.func) for node in nodes if isinstance(node, ast.Call)]
    values = [node.value for node in nodes if isinstance(node, ast.Assign)]
    values += [each for value in values if isinstance(value, ast.IfExp) for each in (value.body, value.orelse)]
    for names in ([call.name for call in calls], every, [modules.name_of(value) for value in values]):
        some = [name for name in dict.fromkeys(names) if name in defined or "Trainer" in name]
        made = [modules.made_of(module, name, known) for name in some]
        if named := [each for each in made if each.name]:
            return named
    return []


def _calls(tree: ast.AST, always: bool = True) -> Iterator[Call]:
    """The calls that are reached whatever a condition says, in the order of the file; not `always` where a function may
    return before."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Call):
            yield _call(node, always)
        if not isinstance(node, CONDITIONAL) or _is_program(node):
            yield from _calls(node, always or isinstance(node, ast.FunctionDef))
        elif any(isinstance(each, ast.Return) for each in ast.walk(node)):
            always = False


def _is_program(node: ast.AST) -> bool:
    """Whether it is ``if __name__ == "__main__"``."""
    test = node.test if isinstance(node, ast.If) else None
    return isinstance(test, ast.Compare) and getattr(test.left, "id", "") == "__name__"


def _call(node: ast.Call, always: bool) -> Call:
    name = modules.name_of(node.func)
    known: dict[str, object] = {}
    unknown: set[str] = set()
    lines = {CLASS: node.lineno}
    for keyword in node.keywords:
        if keyword.arg is None:
            unknown.update((*REST, engines.ANYTHING))
            continue
        lines[keyword.arg] = keyword.value.lineno
        try:
            known[keyword.arg] = ast.literal_eval(keyword.value)
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
            unknown.add(keyword.arg)
    return Call(name, known, frozenset(unknown - known.keys()), lines, always)


def _makes_arguments(call: Call) -> bool:
    """Whether a call makes the arguments of a training, as other configs don't."""
    if call.name.endswith("TrainingArguments"):
        return True
    return call.name.endswith("Config") and bool(SETTINGS & {*call.known, *call.unknown})


def _training(
    module: SourceFile, call: Call, adapters: Sequence[Call], trainers: Sequence[TrainerClass], known: Overrides
) -> Iterator[Statement]:
    """The statements of a training's arguments, with the adapter of its file, and the trainer by what its class is made
    of."""
    data, lines, unknown = dict(call.known), dict(call.lines), set(call.unknown)
    for adapter in adapters:
        for name, key in LORA.items():
            if name in adapter.unknown or (key in data and data[key] != adapter.known.get(name)):
                unknown.add(key)
            elif name in adapter.known:
                data[key], lines[key] = adapter.known[name], adapter.lines[name]
    if adapters:
        data["use_peft"], lines["use_peft"] = True, adapters[0].lines[CLASS]
    data[arguments.SUBCLASS] = any(made.subclass for made in trainers)
    named = [made.name if made.library != "trl" or arguments.called(made.name) else OTHER_TRAINER for made in trainers]
    config = call.name.removesuffix("Config")
    if config != call.name and not data[arguments.SUBCLASS] and (not named or arguments.called(config)):
        named = [config]
    if named:
        data["trainer"], lines["trainer"] = named[0] if len(named) == 1 else named, call.lines.get(CLASS, 1)
    for key in unknown & data.keys():
        del data[key]
    overrides = modules.overrides_of(module, call.name, known)
    unseen = frozenset({engines.ANYTHING} if call.name in module.classes else ())
    section = Section(replace(module.document, lines=lines), data, unknown=frozenset(unknown))
    yield from arguments.stated(
        section, "" if overrides is None else TRANSFORMERS, unseen if overrides is None else overrides
    )


def _accelerators(document: Document, calls: Sequence[Call]) -> Iterator[Statement]:
    """The statements of the only Accelerator of a file and its plugins."""
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
    """The statements of a plugin for FSDP or DeepSpeed; only the engine, where a setting of it isn't known."""
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


def assignments(document: Document, tree: ast.AST) -> Iterator[Statement]:
    """The assignments of a program; of checkpointing the mode, where it is a literal and only asked for with
    checkpointing itself."""
    if not any(name in document.text for name in (*DECIDES, *METHODS)):
        return
    for node, tests in _nodes(tree):
        place = replace(document.place(getattr(node, "lineno", 1)), text="set in code")
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Attribute) and (axis := DECIDES.get(target.attr)):
                yield _set(axis, getattr(node, "value", None), tests, place)
        if isinstance(node, ast.ClassDef) and any(CONFIG_CLASS.search(ast.unparse(base)) for base in node.bases):
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign) and each.value]
            names = [getattr(each.target, "id", "") for each in fields]
            yield from (Statement(IN_CODE, frozenset([DECIDES[name]]), place) for name in names if name in DECIDES)
        called = node.func if isinstance(node, ast.Call) and (node.args or node.keywords) else None
        if isinstance(called, ast.Attribute) and called.attr in METHODS:
            yield Statement(IN_CODE, frozenset([METHODS[called.attr]]), place)


def _nodes(tree: ast.AST) -> Iterator[tuple[ast.AST, Tests]]:
    """Every node in the order of the file, with the conditions that it stands under."""
    left: list[tuple[ast.AST, Tests]] = [(tree, ())]
    while left:
        node, tests = left.pop()
        yield node, tests
        under = (*tests, node.test) if isinstance(node, ast.If) else tests
        left += [(each, under) for each in reversed([*ast.iter_child_nodes(node)])]


def _set(axis: str, value: ast.expr | None, tests: Tests, place: Place) -> Statement:
    """That a program decides an axis, or how."""
    try:
        given = ast.literal_eval(value) if axis == UNNAMED and value else None
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        given = None
    reentrant = given.get("use_reentrant") if isinstance(given, dict) else None
    if isinstance(reentrant, bool) and all("gradient_checkpointing" in ast.unparse(test) for test in tests):
        mode = "reentrant" if reentrant else "non-reentrant"
        return Statement("checkpointing", frozenset(["off", mode]), place)
    return Statement(IN_CODE, frozenset([axis]), place)
