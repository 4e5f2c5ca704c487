"""The file of one cell: its failure's code folded and put together, within the templates of strategy and outcome."""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from typing import Any

import libcst as cst
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from faultline import catalogue
from faultline.export import facts, root
from faultline.export.bundle import bundle, line, reachable
from faultline.export.facts import COMPARED, Place, config, filled, shim
from faultline.export.names import code
from faultline.export.read import Sources, read
from faultline.export.tidy import tidy
from faultline.matrix import ROWS
from faultline.server import STACK

TEMPLATES = Environment(
    loader=FileSystemLoader(facts.TEMPLATES),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,  # it is Python
)
# What the templates import for code outside of functions.
STANDARD = (
    *(f"import {name}" for name in ("os", "re", "shutil", "signal", "socket", "sys", "tempfile")),
    "from importlib import metadata",
)
# What stands for something else, in scenarios that compare numbers and in files that need not: module, name, and its
# simpler self.
COMPARABLE = (("tiny_models.data", "text_rows", "uneven_rows"),)
SIMPLER = (
    ("tiny_models.data", "text_rows", "random_rows"),
    ("tiny_models.data", "sliced_image_batch", "random_slices"),
    ("faultline.scenario", "token_batch", "random_batch"),
)
# Trainers that learn from given completions only, and so never sample.
NO_SAMPLING = r"""\b(SFT|DPO|KTO)Trainer\b|\(Trainer\)|["']lmbda["']: 0\.0"""
# Distributions by the name that is imported, where it differs.
DISTRIBUTIONS = {"PIL": "pillow"}


def write(where: Place) -> str:
    """The source of the file; raises UsageError for what can't be exported."""
    cell, variant = where.cell, where.variant
    folder = catalogue.REPROS / cell.failure
    # What goes wrong at once needs no other rows at later steps, though a trainer may need two micro-batches of them.
    rows = 10**6 if where.kind in COMPARED else ROWS * 2 if variant.trainer else ROWS
    o = facts.facts(where)
    # Only FSDP asks a model which of its modules are units.
    sources = Sources(folder, rows, () if o["family"].startswith("fsdp") else ("_no_split_modules",))
    comparable = () if variant.trainer else COMPARABLE
    for module, name, simpler in comparable if where.kind in COMPARED else SIMPLER:
        definitions = sources[module].definitions
        definitions[name] = definitions[simpler].with_changes(name=cst.Name(name))
    if variant.trainer:
        given = {"zero": ("deepspeed",), "fsdp1": ("fsdp", "fsdp_config"), "fsdp2": ("fsdp", "fsdp_config")}
        keys = None if where.kind in COMPARED else given.get(o["family"], ())
        built = root.trainer(sources, cell, variant, keys)
    else:
        function, known = root.scenario(sources, cell, variant, where.kind in COMPARED), sources.constants("failure")
        built = root.parts(function, root.PARTS, known)
        if "second" in built.parts and where.kind == "trains":
            o["kind"] = "misplaced"
        needless = set(root.PARTS) - {"model", "second", "checkpoint"} if o["kind"] == "misplaced" else set()
        needless |= {"checkpoint"} if cell.checkpointing == "off" else set()
        built = root.parts(function, set(root.PARTS) - needless, known)
        o |= {"accelerated": "second" in built.parts or built.accelerate, "micro_batches": built.micro_batches}
    for name in ("save", "load") if where.saves else ():
        root.kept(sources, name, variant)
    o["as_file"] = "as_launched(" in built.statements  # which hands a config's path to accelerate's launcher
    o |= {"parts": built.parts, "setup": built.setup, "statements": built.statements}
    o["compared"] = o["kind"] in COMPARED
    o["samples"] = not re.search(NO_SAMPLING, f"{built.statements} {built.parts.get('built')}")
    if o["family"] == "zero":
        native = 1 if "by_hand" in built.parts else built.micro_batches
        base = config(o["options"], cell, built.deepspeed, native)
        zero_optimization = base.pop("zero_optimization")
        o["ds_config"] = [*filled("DS_CONFIG", base), *filled('DS_CONFIG["zero_optimization"]', zero_optimization)]
    o["shim"] = shim(o) if o.get("accelerated") or variant.trainer else ""
    level = "trainer" if variant.trainer else "scenario"
    failure = sources["failure"]
    places = {name: ("failure", name) for name in failure.definitions if name.isidentifier()} | failure.imports
    o["names"] = "\n".join(line(name, *place) for name, place in places.items())
    rendered = TEMPLATES.get_template(f"{level}.py.j2").render
    o |= {"asked": set(), "folder": True}
    o |= {} if variant.trainer else arranged(built, o)
    used = [code(module.definitions[name]) for _, module, name in reachable(sources, read(rendered(o=o)))]
    o["asked"] = {name for each in (built.statements, *used) for name in re.findall(r"\bsetup\.(\w+)", each)}
    o["dropout"] = o["compared"] and any("dropout" in each for each in used)
    o["folder"] = bool(variant.trainer) or where.saves or "folder" in o["asked"]
    o |= {} if variant.trainer else arranged(built, o)
    main = rendered(o=o) + TEMPLATES.get_template("launch.py.j2").render(o=o)
    parts = bundle(sources, main, o["trainer"])
    o["main"] = TEMPLATES.get_template("main.py.j2").render(o=o)
    lines = set(parts.imports) | set(STANDARD)
    o["no_compiler"] = o["family"] == "zero" and not o["cuda"]
    lines |= {"import deepspeed"} if o["no_compiler"] else set()
    standard = {each for each in lines if re.split(r"[ .]", each)[1] in sys.stdlib_module_names}
    o |= {"standard": "\n".join(standard), "imports": "\n".join(lines - standard), "body": parts.body}
    needed = packages(o["imports"], where.pins)
    o["pins"] = [f"{name}=={where.pins[name]}" for name in needed]
    text = TEMPLATES.get_template("file.py.j2").render(o=o)
    under_test = {name: where.pins[name] for name in needed if name in STACK}
    return tidy(text.replace("__PINS__", repr(under_test)))


def arranged(built: root.Root, o: Mapping[str, Any]) -> dict[str, Any]:
    """How the loop gets at a scenario's parts: as the function that it is, or by a name."""
    local = {name: "make_optimizer" if name == "optimizer" else name for name in built.parts}
    before_step = built.parts.get("before_step", "")
    anew = before_step in built.own and root.gives_back(built.statements, before_step)
    hidden = "optimizer" if anew else ""  # by the optimizer that it makes, and needed again
    made = [n for n, e in built.parts.items() if not e.isidentifier() or e == hidden or (n == "model" and e != n)]
    fields = {"rank": "rank", "world_size": "WORLD_SIZE", "device": 'torch.device("cpu")', "folder": "FOLDER"}
    fields |= {"reference": "False"}
    fields |= {"device": 'torch.device("cuda", torch.cuda.current_device())'} if o["cuda"] else {}
    if o["compared"]:
        fields |= {"world_size": "world_size", "reference": "in_one_process"}
        fields["folder"] = 'os.path.join(FOLDER, f"reference-{os.getpid()}") if in_one_process else FOLDER'
    calls = {name: local[name] if name in made else value for name, value in built.parts.items()}
    own_optimizer = {"optimizer": f"{calls['optimizer']}(MODEL)".replace} if "optimizer" in calls else {}
    return {
        "named": [(local[name], built.parts[name]) for name in made],
        "calls": calls,
        "setup_fields": ", ".join(f"{name}={value}" for name, value in fields.items() if name in o["asked"]),
        "anew": anew,
        **own_optimizer,
    }


def packages(imports: str, pins: Mapping[str, str]) -> list[str]:
    """The distributions to pin: what the file imports, and what trainers can't do without."""
    names = {re.split(r"[ .]", line)[1] for line in imports.splitlines()}
    names |= {"transformers", "accelerate", "datasets"} if "trl" in names else set()
    names |= {"transformers"} if "peft" in names else set()
    return sorted({DISTRIBUTIONS.get(name, name) for name in names} & pins.keys())


def packages_of(text: str) -> list[str]:
    """The pins in a file's header."""
    line = next(line for line in text.splitlines() if line.startswith("# dependencies = "))
    pins: list[str] = tomllib.loads(line.removeprefix("# "))["dependencies"]
    return pins
