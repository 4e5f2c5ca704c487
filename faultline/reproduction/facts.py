"""The facts of a report: what its texts, configs and scripts say of the run, each with its place."""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from faultline.audit.command import AuditRequest, AuditResult
from faultline.audit.command import answer as audit
from faultline.audit.project import read_recipes
from faultline.base.errors import UsageError
from faultline.base.packages import NEEDED
from faultline.base.paths import content
from faultline.diagnose.command import DiagnoseRequest, DiagnoseResult
from faultline.diagnose.command import answer as diagnose
from faultline.projects.files import decoded

TEXTS = (".md", ".txt", ".log", ".out", ".err", "")  # read as a log; all else as audit reads it
BLOCK = re.compile(r"^```[ \t]*(\w{0,20})[^\n]{0,200}\n(.{1,20000}?)^```", re.MULTILINE | re.DOTALL)
FILES = {"python": "train.py", "py": "train.py", "bash": "run.sh", "sh": "run.sh", "shell": "run.sh"}
FILES |= {"json": "config.json", "yaml": "config.yaml", "yml": "config.yaml"}
LARGEST = 1_000_000  # bytes of a text in which blocks are looked for
EXACT = re.compile(r"==([\w.+!]+)")


@dataclass(frozen=True)
class Fact:
    """One thing that is known of the run: ``strategy: zero3``, and where it stands."""

    name: str
    value: str
    place: str


@dataclass(frozen=True)
class ReportFacts:
    """All that a report says of a run: the facts, what `diagnose` makes of its texts, and `audit` of its files.

    `left` are the values left of each axis, `versions` those of the packages under test.
    """

    facts: tuple[Fact, ...]
    diagnosis: DiagnoseResult
    project: AuditResult | None
    left: Mapping[str, frozenset[str]]
    versions: Mapping[str, str]
    text: str = ""


def read(paths: Sequence[str]) -> ReportFacts:
    """The facts of files; raises UsageError where none can be read.

    Blocks of code in a text count as files of their language. Nothing of a report is run.
    """
    files = [file for path in map(Path, paths) for file in (sorted(path.rglob("*")) if path.is_dir() else [path])]
    files = [file for file in files if file.is_file()]
    texts = [file for file in files if file.suffix.lower() in TEXTS]
    if not files:
        raise UsageError("there is no report: give the text, a log, or a folder of them")
    diagnosis = diagnose(DiagnoseRequest(logs=tuple(map(str, texts or files))))
    written = [decoded(content(file, LARGEST)) or "" for file in texts]
    with tempfile.TemporaryDirectory(prefix="faultline-") as folder:
        named = [*(str(file) for file in files if file not in texts), *_blocks(written, Path(folder))]
        project = _audited(named)
    hints = diagnosis.diagnosis.hints
    left: dict[str, frozenset[str]] = dict(project.project.left) if project else {}
    versions = {name: pin[1] for name, each in _ranges(project) if (pin := EXACT.fullmatch(each))}
    sources = project.project.sources if project else {}
    facts = [
        Fact(axis, " or ".join(sorted(values)), str(next(iter(sources.get(axis, ())), "")))
        for axis, values in sorted(left.items())
        if 0 < len(values) <= 3
    ]
    # A text that compares engines names some under which all is well; a config is what ran.
    for axis, values in (("strategy", hints.strategies), ("checkpointing", hints.modes)):
        if values and axis not in left:
            left[axis] = values
            facts.append(Fact(axis, " or ".join(sorted(values)), "the text"))
    versions |= {name: version for name, version in hints.versions.items() if name in NEEDED}
    facts += [Fact(name, version, "the text") for name, version in sorted(hints.versions.items()) if name in NEEDED]
    return ReportFacts(tuple(facts), diagnosis, project, left, versions, "\n".join(written))


def _blocks(texts: Sequence[str], folder: Path) -> Iterator[str]:
    """Write the blocks of code of texts into files, and give their names."""
    for number, text in enumerate(texts):
        for index, (language, code) in enumerate(BLOCK.findall(text)):
            if name := FILES.get(language.lower()):
                place = folder / f"block-{number}-{index}" / name
                place.parent.mkdir()
                place.write_text(code, encoding="utf-8")
                yield str(place)


def _audited(named: Sequence[str]) -> AuditResult | None:
    """What audit says of those files that it knows."""
    known = []
    for name in named:
        try:
            read_recipes([name])
        except UsageError:
            continue
        known.append(name)
    return audit(AuditRequest(files=tuple(known))) if known else None


def _ranges(project: AuditResult | None) -> list[tuple[str, str]]:
    return [(name, each.text) for name, each in project.project.versions.items()] if project else []
