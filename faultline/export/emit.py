"""The file of one cell: its failure's code, decided and put together, within the templates of strategy and outcome."""

import ast
import re
import subprocess
import sys
import textwrap
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
from faultline.export.decide import decide
from faultline.export.file import File
from faultline.export.modules import Sources
from faultline.export.names import code, loads, parsed
from faultline.export.program import fit, gather
from faultline.export.specialise import specialise
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
SHARED = ("--isolated", "--line-length", "120", "--target-version", "py311", "-")
# What ruff takes away or tidies: imports, quotes, statements and returns that do nothing, f-strings that hold nothing.
RULES = ("F401", "F541", "F841", "I001", "B009", "B010", "PIE790", "PLR1711", "RET501")
FIX = ("check", "--fix-only", "--unsafe-fixes", "--quiet", "--preview", "--select", ",".join(RULES), *SHARED)
FORMAT = ("format", "--quiet", "--config", "format.skip-magic-trailing-comma=true", *SHARED)
CHECK = ("check", "--quiet", "--select", "F821,F811,E9", "--output-format", "concise", *SHARED)
MISSING = """
except ImportError as error:
    PARSER.exit(ENDS[3], f"NOT TRIED: {error}; `uv run {sys.argv[0]}` installs what this file was made for\\n")

"""


def write(place: ExportedCell) -> str:
    """The source of the file; raises NotExportable for what can't be exported."""
    sources, kind, built = specialise(place)
    file = survey(File(place, kind, built), sources)
    launch = TEMPLATES.get_template("launch.py.j2").render(file=file)
    main = decide(parsed(launch)[-1], values=file.flags, constants=False)
    program = gather(sources, f"{render_training(file)}\n{launch}", loads(main), file.flags)
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
        main=code(main),
    )
    return tidy(text)


def render_training(file: File) -> str:
    """The training loop of the file."""
    return TEMPLATES.get_template("trainer.py.j2" if file.trainer else "scenario.py.j2").render(file=file)


def survey(file: File, sources: Sources) -> File:
    """The file, with what the code makes use of that its training loop reaches."""
    program = gather(sources, render_training(file), ("train",), file.flags)
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


def tidy(text: str) -> str:
    """The text without unused imports, formatted; raises NotExportable for a name without a meaning."""
    text = _ruff(FORMAT, guard_imports(_ruff(FIX, text)))
    if wrong := _ruff(CHECK, text):
        raise NotExportable(wrong.splitlines()[0])
    return text


def guard_imports(text: str) -> str:
    """The text with an exit code of its own, and one line, if a package is missing or a release lacks a name."""
    start = text.index("\nos.environ.update(")  # what has to be set before anything of others is imported
    imports = r"(?m)(?:^(?:from|import) .*\n(?:[ )].*\n)*\n*)+"

    def in_try(match: re.Match[str]) -> str:
        return f"try:\n{textwrap.indent(match[0].rstrip(), '    ')}{MISSING}"

    return text[:start] + re.sub(imports, in_try, text[start:], count=1)


def _ruff(arguments: tuple[str, ...], text: str) -> str:
    from ruff import find_ruff_bin  # here, as an installed package has it only with its extra

    done = subprocess.run([find_ruff_bin(), *arguments], input=text, capture_output=True, text=True, check=False)
    if done.stderr:
        raise NotExportable(f"{' '.join(done.stderr.split())[:200]}\n{text}")
    return done.stdout
