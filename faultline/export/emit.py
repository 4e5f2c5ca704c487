"""The file of one cell: its failure's code folded and put together, within the templates of strategy and outcome."""

import ast
import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from faultline import strategies
from faultline.base.errors import NotExportable
from faultline.base.packages import STACK
from faultline.base.text import statements
from faultline.cells.cell import FLOOR, HALF, STEPS, TOLERANCE
from faultline.export.cell import ExportedCell, introduction
from faultline.export.file import File
from faultline.export.modules import Sources
from faultline.export.program import fit, gather
from faultline.export.specialise import specialised
from faultline.export.tidy import tidy
from faultline.strategies import ROWS


def refuse(why: str) -> str:
    raise NotExportable(why)


AS_LAUNCHED = "as_launched("  # in a trainer that reads its DeepSpeed config from a file
# Trainers that learn from given completions only, and so never sample; and how many blocks of them one samples.
NO_SAMPLING = r"""\b(SFT|DPO|KTO)Trainer\b|\(Trainer\)|["']lmbda["']: 0\.0"""
SAMPLE_BLOCKS = "sample_blocks"
FOLDER = Path(__file__).parent / "templates"
TEMPLATES = Environment(
    loader=FileSystemLoader([FOLDER, Path(strategies.__file__).parent]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    autoescape=False,  # it is Python
)
TEMPLATES.globals |= {
    "STEPS": STEPS,
    "HALF": HALF,
    "statements": statements,
    "refuse": refuse,
    "ROWS": ROWS,
    "TOLERANCE": TOLERANCE,
    "FLOOR": FLOOR,
    "EPSILON": {"fp32": "2**-23", "bf16": "2**-8"},  # of a checkpoint: a rounding
    "DEADLINE": 180,  # seconds that a rank may take
    "AS_LAUNCHED": AS_LAUNCHED,
    "SAMPLE_BLOCKS": SAMPLE_BLOCKS,
}
# What the templates import for code outside of functions.
STANDARD = (
    *(f"import {name}" for name in ("argparse", "os", "re", "shutil", "signal", "socket", "sys", "tempfile")),
    "from importlib import metadata",
)
# Distributions by the name that is imported, where it differs.
DISTRIBUTIONS = {"PIL": "pillow"}


def write(place: ExportedCell) -> str:
    """The source of the file; raises NotExportable for what can't be exported."""
    sources, kind, built = specialised(place)
    file = surveyed(File(place, kind, built), sources)
    program = gather(sources, rendered(file) + TEMPLATES.get_template("launch.py.j2").render(file=file))
    fit(program)
    imports = program.import_lines() | {*STANDARD}
    standard = {each for each in imports if re.split(r"[ .]", each)[1] in sys.stdlib_module_names}
    needed = packages(imports, place.pins)
    text = TEMPLATES.get_template("file.py.j2").render(
        file=file,
        introduction=introduction(place),
        pins=[f"{name}=={place.pins[name]}" for name in needed],
        under_test={name: place.pins[name] for name in needed if name in STACK},
        standard="\n".join(standard),
        imports="\n".join(imports - standard),
        body=program.text(),
    )
    return tidy(text)


def rendered(file: File) -> str:
    """The training loop of the file."""
    return TEMPLATES.get_template("trainer.py.j2" if file.trainer else "scenario.py.j2").render(file=file)


def surveyed(file: File, sources: Sources) -> File:
    """The file, with what the code makes use of that its training loop reaches."""
    program = gather(sources, rendered(file))
    reached = [ast.unparse(node) for name, node in program.definitions.items() if name not in program.main]
    texts = [file.built.statements, *reached]
    reads = frozenset(name for text in texts for name in re.findall(r"\bsetup\.(\w+)", text))
    return replace(
        file,
        reads=reads,
        dropout=file.compared and any("dropout" in text for text in texts[1:]),
        samples=not re.search(NO_SAMPLING, " ".join([*texts, *file.built.parts.values()])),
        folder=file.trainer or file.place.saves or file.resumed or "folder" in reads,
    )


def packages(imports: set[str], pins: Mapping[str, str]) -> list[str]:
    """The distributions to pin: what the file imports, and what trainers can't do without."""
    names = {re.split(r"[ .]", line)[1] for line in imports}
    names |= {"transformers", "accelerate", "datasets"} if "trl" in names else set()
    names |= {"transformers"} if "peft" in names else set()
    return sorted({DISTRIBUTIONS.get(name, name) for name in names} & pins.keys())


def packages_of(text: str) -> list[str]:
    """The pins in a file's header."""
    line = next(line for line in text.splitlines() if line.startswith("# dependencies = "))
    pins: list[str] = tomllib.loads(line.removeprefix("# "))["dependencies"]
    return pins
