"""The upstream issue of a cell: what happens, what is expected, the file, the environment, and where else it does."""

import platform
import re
from dataclasses import replace

from faultline import strategies
from faultline.base.packages import stack_name
from faultline.base.text import cut, one_line, plain
from faultline.base.traces import shorten_paths
from faultline.catalogue import REMEDIES, stories
from faultline.catalogue.outcomes import outcome_text
from faultline.cells import claims
from faultline.cells.cell import Cell, default_world
from faultline.export import upstream
from faultline.export.cell import ExportedCell
from faultline.export.emit import TEMPLATES, packages_of, write
from faultline.observations import measured, remedies

# What a file patches in the libraries, by the code that does so: their maintainers have to know.
CHANGED = {
    "def fsdp_on_cpu(": "Without a GPU, accelerate by itself trains with plain DDP where it was asked for FSDP:"
    " `fsdp_on_cpu` patches its `AcceleratorState`, so that FSDP is what runs here.",
    "def deepspeed_on_cpu(": "Without a GPU, accelerate by itself trains with plain DDP where it was asked for"
    " DeepSpeed: `deepspeed_on_cpu` patches its `AcceleratorState`, so that DeepSpeed is what runs here.",
    "deepspeed.ops.__compatible_ops__": "DeepSpeed is kept from compiling its shared-memory collectives, which it does"
    " without.",
    'mock.patch("torch.multinomial"': "`torch.multinomial` is patched, so that the same completions are sampled on any"
    " number of ranks.",
}
EXPECTED = {
    "checkpoint": "It trains, and what it saves holds the weights that were trained: every one of them, whole.",
    "misplaced": "Each rank holds its share of the model that is only read, as it does of the one that is trained.",
}
TRAINS = "It trains as in one process: no error, and the same weights after each step."
NO_ERROR = "It trains without an error."
ALONE = "A single process raises one too, so the strategy is not the cause."
# What a reporter asks for, by what happens, and what would do where it can't be had.
WISHES = {
    "raises": "That this trains{alone}. If it can't, an error that says what to do instead.",
    "hangs": "That this ends{alone}. If it can't, an error on every rank: ranks that wait tell nobody why.",
    "crashes": "That this trains{alone}. If it can't, an error on every rank.",
    "checkpoint": "That the checkpoint holds what was trained{alone}. If it can't, an error when it is saved.",
    "misplaced": "That every rank holds its share. If it can't, an error when the model is prepared.",
    "diverges": "That the weights are those of a single process on the same global batch, up to rounding. If they can't"
    " be, an error: nobody sees wrong weights.",
    "resumed": "That a resumed training goes on as if nothing had interrupted it. If it can't, an error as it is"
    " loaded.",
}
DOES_ALONE = ", as it does in a single process on the same releases"
HELPS = {"verified": "yes", "conditional": "in some runs", "refuted": "no"}
SHOWN = 8  # lines of what a file printed, in front of the file
BEGINNING, END = 20, 60  # lines of all that it printed, behind the file
NOISE = re.compile(r"\d+%\||: \w*Warning: |^\s*$")  # progress bars, warnings with the line below, empty lines
UNTOLD = ("impossible", "invalid")  # outcomes of runs that were none
LONGEST = 100  # characters of an error in the table
INNERMOST = 3  # frames of where a rank waits
STACK = re.compile(r"^(rank \d+ waits in)\nStack [^\n]*\n((?: +File [^\n]*\n)+)", re.MULTILINE)
OWN_FRAME = re.compile(r'repro\.py", line \d+ in (?!<|one_rank\b)')  # without what starts the ranks
MARKUP = re.compile(r"([\\\\`*_{}\[\]<>#|~])")


def write_issue(where: ExportedCell, output: str = "", report: tuple[str, str] = ("", "")) -> str:
    """Markdown that can be pasted as it is.

    `output` is what the file printed when it ran, and `report` the command and text of `upstream.environment`.
    """
    text = write(where)
    error = where.error if where.kind == "raises" else ""
    happens = f"an error that matches `{where.pattern}`" if where.kind == "raises" else where.happens
    return TEMPLATES.get_template("issue.md.j2").render(
        title=prose(where.failure.title),
        happens="the error below" if error else happens,
        trains=where.outcome == "trains",
        error=fenced(plain(error), "text") if error else "",
        cell=where.cell,
        variant=_form(where),
        cause=one_line(stories.paragraph(where.failure, "Cause")),
        expected=_expected(where),
        wish=_wish(where),
        printed=_printed(output),
        transcript=fenced(transcript(output), "text") if output else "",
        fault=upstream.line_at_fault(where),
        devices=upstream.devices(where),
        report=(report[0], fenced(report[1], "text")) if report[1] else (),
        tried=tried_remedies(where),
        file=fenced(text.rstrip("\n"), "python"),
        python=platform.python_version(),
        system=platform.system(),
        versions=packages_of(text),
        device="GPU, NCCL" if where.cell.device == "cuda" else "CPU, gloo",
        changed=[patch for code, patch in CHANGED.items() if code in text],
        rows=across(where),
        measured=stack_name(measured.pinned()),
        records=where.failure.records,
    )


def across(where: ExportedCell) -> list[tuple[str, str]]:
    """What the same run does under each strategy that can run it: strategies, and the outcome that they share."""
    outcomes = {
        name: _outcome(where, *did) for name, did in _outcomes_by_strategy(where).items() if did[0] not in UNTOLD
    }
    groups: dict[str, list[str]] = {}
    for name in strategies.names():
        if name in outcomes:
            groups.setdefault(outcomes[name], []).append(f"`{name}`")
    return [(", ".join(names), outcome) for outcome, names in groups.items()]


def _outcomes_by_strategy(where: ExportedCell) -> dict[str, tuple[str, str]]:
    """What was measured of the same run under each strategy."""
    outcomes: dict[str, tuple[str, str]] = {}
    for cell, outcome in measured.outcomes(where.failure).items():
        same = ("variant", "checkpointing", "precision")
        world = cell.world_size in (where.cell.world_size, default_world(cell))
        if world and all(getattr(cell, axis) == getattr(where.cell, axis) for axis in same):
            outcomes.setdefault(cell.strategy, outcome)
    return outcomes


def _outcome(where: ExportedCell, outcome: str, signature: str) -> str:
    """An outcome without names of signatures: an error by its own words if they were recorded."""
    there = replace(where, outcome=outcome, signature=signature)
    if outcome == "trains":
        text = outcome
    elif symptom := one_line(there.error) if outcome == "raises" else there.happens:
        symptom = cut(symptom, LONGEST)
        text = escaped(f"raises {symptom}" if outcome == "raises" else symptom)
    else:
        text = escaped(outcome_text(outcome, signature))
    if signature in where.failure.also_raises:
        text += " (of another cause)"
    return text


def tried_remedies(where: ExportedCell) -> list[tuple[str, str]]:
    """Each remedy for cells of this form, in any precision, and whether it helps; those that help come first.

    A remedy that helps in some cells only is followed by what the others do, be they of other forms. Upgrades are left
    out, and remedies that no such cell can have.
    """
    cell, failure = replace(where.cell, precision=Cell.precision), where.failure
    verdict_of: dict[str, tuple[str, str]] = {}
    for claim in failure.claims.values():
        if claim.kind not in REMEDIES or "stack" in claim.swap or not claims.is_about(failure, claim, cell):
            continue
        every = remedies.recorded_verdict(failure, claim)
        sides = ([c for c in side if c.variant == cell.variant] for side in (every.supporting, every.against))
        of_form = claims.Verdict(claim, *map(tuple, sides))
        elsewhere = ""
        if every.word == "conditional" and of_form.word != "refuted":
            places = remedies.describe_outcomes(
                failure, every, measured.outcomes(failure, remedies.tested_on(failure, claim))
            )
            elsewhere = f"; elsewhere {escaped('; '.join(places))}" if places else ""
        verdict_of[prose(claim.text)] = of_form.word, elsewhere
    return [
        (text, f"{answer}{elsewhere}")
        for word, answer in HELPS.items()
        for text, (verdict, elsewhere) in verdict_of.items()
        if verdict == word
    ]


def _expected(where: ExportedCell) -> str:
    """What should happen; a single process is the measure only where it trains itself."""
    if where.raises_alone:
        return NO_ERROR if where.cell.strategy == "single" else f"{NO_ERROR} {ALONE}"
    return EXPECTED["checkpoint"] if where.saves else EXPECTED.get(where.kind, TRAINS)


def _wish(where: ExportedCell) -> str:
    """What its reporter asks for, whether a single process does it, and what helps until then, as it was measured;
    nothing where it trains."""
    if where.kind == "trains":
        return ""
    alone = _outcomes_by_strategy(where).get("single", ("",))[0] == "trains" and where.cell.strategy != "single"
    kind = "resumed" if where.cell.life == "resumed" else where.kind
    wish = WISHES[kind].format(alone=DOES_ALONE if alone else "")
    helps = [text for text, answer in tried_remedies(where) if answer.startswith(HELPS["verified"])][:2]
    until = f" Until then, this helps: {'; or '.join(helps)}." if helps else ""
    return f"{wish}{until}"


def _form(where: ExportedCell) -> str:
    """What is run, for a sentence; empty for the failure as it was reported."""
    text = where.failure.described(where.variant)
    if text in ("", "the failure"):
        return ""
    return f" ({prose(text)})" if where.variant.broken else f", with this remedy: {prose(text)}"


def _printed(output: str) -> str:
    """A code block of what the ranks printed, and of where each of them waits; empty if there is neither."""
    waits = _waits(output)
    lines = split_lines(STACK.sub("", output)).splitlines()
    printed = [plain(line) for line in lines if re.match(r"rank \d", line)]
    block = [*printed[:SHOWN], *waits]
    return "It prints:\n\n" + fenced("\n".join(block), "text") if block else ""


def split_lines(output: str) -> str:
    """What two ranks printed on one line, on two."""
    return re.sub(r"(?<=[^\s(])(?=rank \d)", "\n", output)


def transcript(output: str) -> str:
    """All that a file printed, without noise and without this machine's paths; a long one says what is left out."""
    named = re.sub(r'"[^"]*/repro[.]py"', '"repro.py"', plain(split_lines(output)))
    lines, shown = shorten_paths(named).splitlines(), []
    for before, line in zip(["", *lines], lines, strict=False):
        below = "Warning: " in before and line.startswith("  ")  # the line that warns
        if not below and not NOISE.search(line):
            shown.append(line)
    if more := len(shown[BEGINNING:-END]):
        shown[BEGINNING:-END] = [f"... ({more} lines are left out)"]
    return "\n".join(shown)


def _waits(output: str) -> list[str]:
    """Where each rank waits: the innermost frames, the frames of the file itself, and those that it calls."""
    lines = []
    for rank, stack in STACK.findall(output):
        frames = [shorten_paths(re.sub(r'"[^"]*/repro[.]py"', '"repro.py"', frame)) for frame in stack.splitlines()]
        # The frames of the file, and what they call.
        of_file = [frame for n, frame in enumerate(frames) if OWN_FRAME.search("\n".join(frames[n : n + 2]))]
        lines += [rank, *frames[:INNERMOST], "  ...", *(frame for frame in of_file if frame not in frames[:INNERMOST])]
    return lines


def prose(text: str) -> str:
    """A text in one line whose code stays code; Markdown shows everything else as it is."""
    parts = re.split("(`[^`]+`)", one_line(text))
    return "".join(part if n % 2 else MARKUP.sub(r"\\\1", part) for n, part in enumerate(parts))


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, in one line."""
    return MARKUP.sub(r"\\\1", one_line(text))


def fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
