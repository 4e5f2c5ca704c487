"""Moving the pins: is-safe's answer, what is measured and rewritten on the new stack, what is left to a person."""

import re
import sysconfig
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import tomlkit
from packaging.utils import canonicalize_name

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED, UsageError
from faultline.base.packages import NEEDED, STACK, pinned
from faultline.base.paths import REPROS, RESULTS, ROOT
from faultline.base.text import count
from faultline.catalogue.loading import failures
from faultline.catalogue.outcomes import outcome_text
from faultline.cells import expected
from faultline.cells.cell import Cell
from faultline.cells.expected import Rule
from faultline.cells.selection import Selection, select
from faultline.maintain import bless as blessing
from faultline.maintain import command, record, score
from faultline.matrix import command as matrix
from faultline.matrix.command import RunRequest
from faultline.observations import recording, store
from faultline.releases import is_safe
from faultline.releases.changes import Safety
from faultline.runs import results, storage
from faultline.runs.results import Result
from faultline.runs.storage import RunFolder
from faultline.stacks import environments, requests
from lab.explore import replay

PINS = ROOT / "requirements.txt"
STATE, DECISIONS, MATRIX, AGAIN = "bump.json", "decisions.md", "matrix", "again"
# What hangs on the stack, and takes hours.
NOT_MEASURED = (
    "docs/models.md wasn't measured again: `faultline prove models`",
    "docs/trust.md wasn't measured again: `faultline prove trust`, and with --matrix",
    "the timeline has no new month: `faultline timeline --write`",
)


@dataclass(frozen=True)
class Bump:
    """A move of pins that has begun: the new versions and the old ones by package, is-safe's verdict and its page.

    `findings` are those that do anything otherwise on the new stack, once all were replayed.
    """

    new: Mapping[str, str]
    old: Mapping[str, str]
    verdict: str
    page: str
    findings: Sequence[str] | None = None


def run(requirements: str, workers: int) -> int:
    """Until the new versions are installed, ask is-safe and move the pins; from then on, measure and rewrite.

    Exit code 1 once all is done and a person has something to decide. What an interruption left is gone on with.
    """
    new = parse_versions(requirements)
    text = " ".join(f"{name}=={version}" for name, version in new.items())
    folder = RESULTS / f"bump-{text.replace('==', '-').replace(' ', '-')}"
    if not (folder / STATE).exists():
        old = {name: version for name, version in pinned(PINS).items() if name in new}
        if old == new:
            raise UsageError(f"requirements.txt has {text} already, so there is nothing to move")
        verdict, page = ask_is_safe(text, workers)
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, Bump(new, old, verdict, page))
    bump = msgspec.json.decode((folder / STATE).read_bytes(), type=Bump)
    PINS.write_text(move_pins(PINS.read_text(encoding="utf-8"), new), encoding="utf-8")
    here = environments.pins("\n".join(requests.installed()))
    if any(here.get(name, "").split("+")[0] != version for name, version in new.items()):
        print(f"requirements.txt has {text}; once `make lock setup` has installed it, the same command goes on")
        return EXIT_AS_EXPECTED
    lines = rewrite(bump, folder, workers)
    (folder / DECISIONS).write_text("".join(f"- {line}\n" for line in lines), encoding="utf-8")
    print("\nleft to a person:", *(f"- {line}" for line in lines), sep="\n")
    return EXIT_UNEXPECTED


def write(folder: Path, bump: Bump) -> None:
    (folder / STATE).write_bytes(msgspec.json.encode(bump))


def parse_versions(requirements: str) -> dict[str, str]:
    """The versions that are asked for by package; raises UsageError for all but ``name==version`` of the stack."""
    new: dict[str, str] = {}
    for text in requirements.split():
        package, _, version = text.partition("==")
        name = canonicalize_name(package)
        if name not in NEEDED or name in new or not re.fullmatch(r"\d[\w.!+-]*", version):
            raise UsageError(f"{text!r}: name a package of the stack, once, with its version: transformers==5.24.0")
        new[name] = version
    if not new:
        raise UsageError("name what is to move, such as transformers==5.24.0")
    return dict(sorted(new.items()))


def move_pins(text: str, new: Mapping[str, str]) -> str:
    """A requirements file with other pins, and everything else as it was."""
    for name, version in new.items():
        text = re.sub(rf"(?m)^{re.escape(name)}==\S+", f"{name}=={version}", text)
    return text


def ask_is_safe(text: str, workers: int) -> tuple[str, str]:
    """is-safe's verdict on the new versions, and the path of its page; an interrupted one is gone on with."""
    request = is_safe.IsSafeRequest(text, Selection(), workers=workers, resume=True)
    try:
        code = is_safe.run(request)
    except UsageError:  # there is nothing to go on with; any other mistake comes again
        code = is_safe.run(replace(request, resume=False))
    verdict = next(each for each in Safety if each.exit_code == code)
    return verdict, f"{next(storage.runs(kind='is-safe')).shown}/summary.md"


def rewrite(bump: Bump, folder: Path, workers: int) -> list[str]:
    """Measure the matrix and the findings on the new stack, and rewrite all that says what they do; gives what is left
    to a person, in lines."""
    entries, unsteady = measure_matrix(folder, workers)
    lines = [f"is-safe says {bump.verdict}: {bump.page}"]
    lines += [f"{cell.id} doesn't do the same twice, and isn't blessed" for cell in unsteady]
    lines += bless_new([entry for entry in entries if entry.cell not in {*unsteady}], bump)
    if bump.findings is None:
        bump = replace(bump, findings=replay.replay(replay.Request(workers=workers, write=True)))
        write(folder, bump)
    lines += [f"findings/{name} does something else now: see its finding.toml" for name in bump.findings or ()]
    matrix_run = str(folder / MATRIX)
    record.run([matrix_run])
    store.write(recording.with_today(store.everything()))
    lines += move_faults(bump.new)
    score.run()
    command.durations(matrix_run)
    command.readmes(matrix_run)
    return [*lines, *NOT_MEASURED]


def measure_matrix(folder: Path, workers: int) -> tuple[Sequence[Result], Sequence[Cell]]:
    """What each cell of the matrix does; and the cells that did something new, and then not the same again."""
    whole = RunRequest(Selection(), workers=workers, resume=True, results=str(folder / MATRIX))
    matrix.run(whole)
    entries = RunFolder(folder / MATRIX).results()
    new = [entry for entry in entries if entry.verdict != "expected"]
    if not new:
        return entries, ()
    selection = Selection(cells=tuple(entry.cell.id for entry in new))
    matrix.run(replace(whole, selection=selection, fresh=True, results=str(folder / AGAIN)))
    again = results.outcomes(RunFolder(folder / AGAIN).results())
    return entries, [entry.cell for entry in new if again.get(entry.cell) != entry.did]


def bless_new(entries: Sequence[Result], bump: Bump) -> list[str]:
    """Bless each failure of a run whose cells all prove and name what they did, for the new versions alone; gives what
    changed, or why it isn't blessed, in lines."""
    since = tuple((name, f">={version}") for name, version in bump.new.items() if name in STACK)
    lines = []
    for name, failure in failures().items():
        local = [entry for entry in entries if entry.cell.failure == name]
        file = REPROS / name / "expected.toml"
        rules = expected.load(file)
        changed = Counter(filter(None, (change(rules, entry, bump.old) for entry in local)))
        if not changed:
            continue
        lines += [f"{name}, {count(number, 'cell')}: {text}" for text, number in changed.items()]
        try:
            blessing.refuse(local, finished=True)
        except UsageError as error:
            lines.append(f"{name} isn't blessed: {error}")
            continue
        cells = select(failures(), Selection(failure=(name,)))
        observed = results.outcomes(local)
        rules = blessing.bless(failure, observed, local[0].stack, rules, cells, since)
        file.write_text(expected.to_toml(rules), encoding="utf-8")
    expected.rules.cache_clear()
    return lines


def move_faults(new: Mapping[str, str]) -> list[str]:
    """Move the line at fault of each failure to where its text stands in the new versions; gives, in lines, those whose
    text isn't there just once."""
    lines = []
    for failure in failures().values():
        fault = failure.history.fault
        if not fault or fault.package not in new:
            continue
        source = (Path(sysconfig.get_path("purelib")) / fault.file).read_text(encoding="utf-8").splitlines()
        there = [number for number, line in enumerate(source, 1) if line.strip() == fault.text]
        if len(there) != 1:
            lines.append(f"{failure.name}: its line at fault is {len(there)} times in {fault.file}: see history.toml")
            continue
        file = REPROS / failure.name / "history.toml"
        document = tomlkit.parse(file.read_text(encoding="utf-8"))
        document["fault"].update(line=there[0], version=new[fault.package])
        file.write_text(tomlkit.dumps(document), encoding="utf-8")
    return lines


def change(rules: Sequence[Rule], entry: Result, old: Mapping[str, str]) -> str:
    """What a cell did otherwise than the rules say of the old versions; empty if it did the same."""
    before = expected.expect(rules, entry.cell, {**entry.stack, **old})
    if expected.verdict(before, *entry.did) == "expected":
        return ""
    return f"{outcome_text(before.outcome, *before.signatures)} before, {entry.did} now"
