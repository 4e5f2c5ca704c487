"""The last pass over a file's text: ruff takes away imports that nothing uses, and formats the rest."""

import re
import subprocess
import textwrap

from faultline.base.errors import NotExportable

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


def tidy(text: str) -> str:
    """The text without unused imports, formatted; raises NotExportable for a name without a meaning."""
    text = _ruff(FORMAT, guarded(_ruff(FIX, text)))
    if wrong := _ruff(CHECK, text):
        raise NotExportable(wrong.splitlines()[0])
    return text


def guarded(text: str) -> str:
    """The text with an exit code of its own, and one line, if a package is missing or a release lacks a name."""
    start = text.index("\nos.environ.update(")  # what has to be set before anything of others is imported
    imports = r"(?m)(?:^(?:from|import) .*\n(?:[ )].*\n)*\n*)+"

    def tried(match: re.Match[str]) -> str:
        return f"try:\n{textwrap.indent(match[0].rstrip(), '    ')}{MISSING}"

    return text[:start] + re.sub(imports, tried, text[start:], count=1)


def _ruff(arguments: tuple[str, ...], text: str) -> str:
    from ruff import find_ruff_bin  # here, as an installed package has it only with its extra

    done = subprocess.run([find_ruff_bin(), *arguments], input=text, capture_output=True, text=True, check=False)
    if done.stderr:
        raise NotExportable(f"{' '.join(done.stderr.split())[:200]}\n{text}")
    return done.stdout
