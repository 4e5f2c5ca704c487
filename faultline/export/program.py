"""The definitions that one file is made of: gathered from modules of ours, fitted to their calls, and put together."""

import ast
from collections.abc import Collection, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from faultline.base.errors import NotConstant, NotExportable
from faultline.export.decide import Decide, decide, flat
from faultline.export.modules import MAIN, Sources, ours, tables
from faultline.export.names import bindings, code, evaluate, literal, loads, only_result, outside, statements

LONGEST = 9  # statements of a function that is put where it is called


@dataclass
class Program:
    """All definitions of a file by their names, in their order, and what else is known of names in them.

    `main` are the names of the part that uses all others. `imports` has the module and attribute of what isn't ours,
    `known` the values of constants.
    """

    main: frozenset[str] = frozenset()
    definitions: dict[str, Any] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)
    known: dict[str, Any] = field(default_factory=dict)

    def prune(self) -> None:
        """Leave away what nothing uses any more."""
        used = list(self.main)
        for name in used:
            used += [each for each in outside(self.definitions[name]) if each in self.definitions and each not in used]
        self.definitions = {name: node for name, node in self.definitions.items() if name in used}

    def import_lines(self) -> set[str]:
        names = {name for node in self.definitions.values() for name in outside(node)}
        return {_line(name, *self.imports[name]) for name in names & self.imports.keys()}

    def text(self) -> str:
        """The definitions, with constants, which need only each other, in front of the others."""
        texts: dict[bool, list[str]] = {True: [], False: []}
        for node in self.definitions.values():
            texts[_constant(node)].append(getattr(node, "text", "") or code(node))
        return "\n\n".join(["\n".join(texts[True]), *texts[False]])


def gather(sources: Sources, main: str, starts: Collection[str], flags: Mapping[str, Any]) -> Program:
    """What some definitions of a main part need, each behind those that it uses itself, and the main part at the end.

    In the main part, what its `flags` decide is decided. Raises NotExportable if two things would have one name.
    """
    sources.add_main(main)
    of_main = sources[MAIN].definitions
    for name, node in of_main.items():
        if isinstance(node, ast.FunctionDef) and flags.keys() & loads(node).keys():
            of_main[name] = decide(node, values=flags, constants=False)
            for flag in flags.keys() & {each.arg for each in node.args.args}:
                without(of_main[name].args, flag)
    program = Program()
    places: dict[str, str] = {}  # of each definition

    def need(place: str, name: str) -> None:
        module = sources[place]
        if name not in module.definitions:
            origin = module.imports.get(name, ("", ""))
            if ours(origin[0]):
                need(*origin)
            elif name in module.imports and program.imports.setdefault(name, origin) != origin:
                raise NotExportable(f"two things in it are named {name}")
        elif name not in places:
            places[name] = place
            node = sources.definition(place, name)
            others = outside(node)
            program.known |= {other: value for other, value in sources.constants(place).items() if other in others}
            for other in others:
                need(place, other)
            program.definitions[name] = node
        elif places[name] != place:
            raise NotExportable(f"two things in it are named {name}")

    for name in of_main:
        if name in starts or not name.isidentifier():  # a setting
            need(MAIN, name)
    reached = program.definitions
    program.main = frozenset(of_main.keys() & reached.keys())
    last = {name: node for name, node in of_main.items() if name in reached}
    program.definitions = {name: node for name, node in reached.items() if name not in of_main} | last
    return program


def _constant(node: ast.AST) -> bool:
    """Whether a definition needs no function, of which it would be a value or another name."""
    value = getattr(node, "value", None)
    alias = isinstance(value, ast.Name) and value.id.islower()
    calls = any(isinstance(each, ast.Call) and isinstance(each.func, ast.Name) for each in ast.walk(node))
    return not (isinstance(node, ast.FunctionDef | ast.ClassDef) or alias or calls)


def _line(local: str, module: str, attribute: str) -> str:
    if attribute == "import":
        return f"import {module}"
    if not attribute:
        return f"import {module} as {local}"
    return f"from {module} import {attribute}" + (f" as {local}" if local != attribute else "")


def fit(program: Program) -> None:
    """Fit functions to their calls, and leave away what nothing uses then."""
    program.definitions = {name: deepcopy(node) for name, node in program.definitions.items()}
    while any(_fit(program, name) for name in [*program.definitions]):
        program.prune()
    for name, node in program.definitions.items():
        program.definitions[name] = node if hasattr(node, "text") else decide(node, constants=False)
    program.prune()


@dataclass(frozen=True)
class _Uses:
    """The plain calls of a function, and the names of the definitions that hold them."""

    callers: list[str]
    calls: list[ast.Call]


def _uses(program: Program, name: str) -> _Uses | None:
    """None for a function that nothing calls, that is handed on as a value, whose name means something else in a
    caller, or that is called with `*` or `**`."""
    users = {other: node for other, node in program.definitions.items() if loads(node)[name]}
    shared = {other for other, node in users.items() if other != name and bindings(node)[name]}
    callers = [other for other in users if other not in shared or name in outside(users[other])]
    nodes = [node for other in callers for node in ast.walk(users[other])]
    calls = [node for node in nodes if _calls(node, name)]
    handed_on = sum(isinstance(node, ast.Name) and node.id == name for node in nodes) != len(calls)
    given = [each for call in calls for each in (*call.args, *call.keywords)]
    starred = any(isinstance(each, ast.Starred) or getattr(each, "arg", "") is None for each in given)
    return None if not calls or handed_on or starred or shared.intersection(callers) else _Uses(callers, calls)


def _fit(program: Program, name: str) -> bool:
    """Decide a parameter that all calls of a function agree on, or put it where its only call is."""
    function = program.definitions[name]
    if name in program.main or not isinstance(function, ast.FunctionDef) or function.args.vararg:
        return False
    uses = _uses(program, name)
    if not uses:
        return False
    passed = [_passed(function, call) for call in uses.calls]
    values: dict[str, Any]
    if rest := function.args.kwarg:
        if any(keyword.arg not in passed[0] for call in uses.calls for keyword in call.keywords):
            return False
        values, function.args.kwarg = {rest.arg: {}}, None
    elif cut := next(({n: v} for n in passed[0] if (v := _shared(function, n, [p[n] for p in passed])) is not ...), {}):
        [parameter] = cut
        values = cut if loads(function)[parameter] else {}
        _drop_argument(program, function, uses, parameter)
    else:
        once = len(uses.callers) == len(uses.calls) == 1 and uses.callers != [name]
        return once and _inline(program, function, uses.callers[0])
    known = {each: value for each, value in program.known.items() if each not in bindings(function)}
    program.definitions[name] = decide(function, known, tables(program.definitions), values)
    return True


def _drop_argument(program: Program, function: ast.FunctionDef, uses: _Uses, parameter: str) -> None:
    """Take a parameter away from a function, and from all its calls."""
    position = [*_passed(function, uses.calls[0])].index(parameter)
    for call in uses.calls:
        del call.args[position : position + 1]
        call.keywords = [each for each in call.keywords if each.arg != parameter]
    for caller in uses.callers:
        program.definitions[caller].__dict__.pop("text", None)
    without(function.args, parameter)


def _calls(node: ast.AST, name: str) -> TypeGuard[ast.Call]:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _passed(function: ast.FunctionDef, call: ast.Call) -> dict[str, ast.expr]:
    """What a call gives to each parameter, defaults included."""
    args = function.args
    names = [each.arg for each in args.args]
    defaults = dict(zip(names[::-1], args.defaults[::-1], strict=False))
    given = dict(zip(names, call.args, strict=False)) | {str(each.arg): each.value for each in call.keywords}
    others = {each.arg: default for each, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)}
    return {name: given.get(name) or default for name, default in (dict.fromkeys(names) | defaults | others).items()}  # type: ignore[misc]


def _shared(function: ast.FunctionDef, name: str, given: list[ast.expr]) -> Any:
    """The one choice (a text, a yes or no, None, or the default) that all calls make for a parameter; else ``...``.

    It is None for a parameter that isn't used.
    """
    if not loads(function)[name]:
        return None
    try:
        value = evaluate(given[0], {})
        literal(value)
    except NotConstant:
        return ...
    if {ast.unparse(each) for each in given} != {ast.unparse(given[0])}:
        return ...
    default = given[0] in (*function.args.defaults, *function.args.kw_defaults)
    kinds = str | bool | int | None if default else str | bool | None
    return value if bindings(function)[name] == 1 and isinstance(value, kinds) else ...


def without(arguments: ast.arguments, name: str) -> None:
    """Take one parameter away from a function."""
    positional = [each.arg for each in arguments.args]
    if name in positional:
        number = positional.index(name) - len(positional)
        del arguments.args[number]
        if -number <= len(arguments.defaults):
            del arguments.defaults[number]
    else:
        number = [each.arg for each in arguments.kwonlyargs].index(name)
        del arguments.kwonlyargs[number], arguments.kw_defaults[number]


class _Put(ast.NodeTransformer):
    """Puts another expression in the place of one, and statements in front of it if it is a statement's whole value."""

    def __init__(self, old: ast.expr, new: ast.expr, before: list[Any]) -> None:
        self.old, self.new, self.before, self.done = old, new, before, False

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, ast.Assign | ast.Return) and node.value is self.old:
            node.value, self.done = self.new, True
            return flat(node, [*self.before, node]) if self.before else node
        self.done = self.done or (node is self.old and not self.before)
        return self.new if node is self.old and not self.before else self.generic_visit(node)


def _inline(program: Program, function: ast.FunctionDef, caller: str) -> bool:
    """Put a function of few statements, the last its only return, where its only call is."""
    few = sum(isinstance(each, ast.stmt) for each in ast.walk(function)) <= LONGEST
    if not few or function.decorator_list or not only_result(function):
        return False
    where = program.definitions[caller]
    [call] = [node for node in ast.walk(where) if _calls(node, function.name)]
    given, before = _passed(function, call), statements(function)[:-1]
    simple = {name: value for name, value in given.items() if isinstance(value, ast.Name | ast.Constant)}
    plain = simple if before else given  # what is put in place of a parameter; all else is assigned in front
    if before and not isinstance(where, ast.FunctionDef | ast.ClassDef):
        return False
    if _ambiguous(function, where, given, plain) or any(loads(function)[name] > 1 for name in plain.keys() - simple):
        return False
    named = Decide({}, {}, {})
    named.values = plain
    *before, last = named.visit(ast.Module(deepcopy(statements(function)), [])).body
    start = [ast.Assign([ast.Name(n, ast.Store())], e, lineno=0) for n, e in given.items() if n not in plain]
    put = _Put(call, last.value, [*start, *before])
    put.visit(where)
    where.__dict__.pop("text", None)
    if put.done:
        del program.definitions[function.name]
    return put.done


def _ambiguous(
    function: ast.FunctionDef, where: ast.AST, given: Mapping[str, ast.expr], plain: Mapping[str, ast.expr]
) -> bool:
    """Whether a name would mean two things if a function stood where it is called, or a parameter is assigned to."""
    bound, around = bindings(function), bindings(where).keys()
    # A comprehension or a lambda has names that are only its.
    scopes = [each for each in ast.walk(function) if isinstance(each, ast.comprehension | ast.Lambda)]
    inner = {name for each in scopes for name in bindings(each.args if isinstance(each, ast.Lambda) else each.target)}
    local = bound.keys() - plain.keys() - inner - {function.name}
    passed = {name for each in given.values() for name in loads(each)}
    return bool(
        local & (around | {*outside(where)})
        or passed & inner
        or any(bound[name] > 1 for name in plain)
        or {*outside(function)} & around
    )
