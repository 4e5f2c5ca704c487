"""The upstream issue of a cell: what happens, what is expected, the file, the environment, and where else it does."""

from __future__ import annotations

import platform
import re
from dataclasses import replace

from faultline import claims, known, readmes, report, strategies, verdicts
from faultline.catalogue import REMEDIES
from faultline.export.facts import Place, documented, shown, told
from faultline.export.write import TEMPLATES, packages_of, write
from faultline.matrix import Cell, default_world
from faultline.recorded import shortened
from faultline.report import one_line, plain
from faultline.results import stack_name

# What a file changes in the libraries themselves, by what it says in code: whoever is to mend them has to know.
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
HELPS = {"verified": "yes", "conditional": "in some of the cells that were run", "refuted": "no"}
SHOWN = 8  # lines of what a file printed
LONGEST = 100  # characters of an error in the table
INNERMOST = 3  # frames of where a rank waits
STACK = re.compile(r"^(rank \d+ waits in)\nStack [^\n]*\n((?: +File [^\n]*\n)+)", re.MULTILINE)
OWN = re.compile(r'repro\.py", line \d+ in (?!<|one_rank\b)')  # without what starts the ranks
MARKUP = re.compile(r"([\\\\`*_{}\[\]<>#|~])")


def write_issue(where: Place, output: str = "") -> str:
    """Markdown that can be pasted as it is; `output` is what the file printed when it ran."""
    text = write(where)
    error = shown(where) if where.kind == "raises" else ""
    happens = f"an error that matches `{documented(where)}`" if where.kind == "raises" else told(where)
    return TEMPLATES.get_template("issue.md.j2").render(
        title=prose(where.failure.title),
        happens="the error below" if error else happens,
        trains=where.outcome == "trains",
        error=fenced(plain(error), "text") if error else "",
        cell=where.cell,
        variant=_form(where),
        cause=readmes.paragraph(where.failure, "Cause"),
        expected=EXPECTED["checkpoint"] if where.saves else EXPECTED.get(where.kind, TRAINS),
        printed=_printed(output),
        tried=tried(where),
        file=fenced(text.rstrip("\n"), "python"),
        python=platform.python_version(),
        system=platform.system(),
        versions=packages_of(text),
        device="GPU, NCCL" if where.cell.device == "cuda" else "CPU, gloo",
        changed=[told for code, told in CHANGED.items() if code in text],
        rows=across(where),
        measured=stack_name(known.pinned()),
        records=where.failure.records,
    )


def across(where: Place) -> list[tuple[str, str]]:
    """What the same run does under each strategy, as the matrix knows it: strategies and the outcome they share."""
    found: dict[str, str] = {}
    for cell, outcome in known.outcomes(where.failure).items():
        same = ("variant", "checkpointing", "precision")
        world = cell.world_size in (where.cell.world_size, default_world(cell))
        if world and all(getattr(cell, axis) == getattr(where.cell, axis) for axis in same):
            found.setdefault(cell.strategy, _told(where, *outcome))
    groups: dict[str, list[str]] = {}
    for name in strategies.names():
        if name in found:
            groups.setdefault(found[name], []).append(f"`{name}`")
    return [(", ".join(names), outcome) for outcome, names in groups.items()]


def _told(where: Place, outcome: str, signature: str) -> str:
    """An outcome for those who don't know the names of signatures, and whether it is another failure's."""
    told = _worded(where, outcome, signature)
    return f"{told} (another failure's: it says nothing of this one)" if signature in where.failure.elsewhere else told


def _worded(where: Place, outcome: str, signature: str) -> str:
    """An outcome in words: an error by its own, where they were recorded."""
    there = replace(where, outcome=outcome, signature=signature)
    if outcome in ("trains", "impossible", "invalid"):
        return outcome
    error = one_line(shown(there)) if outcome == "raises" else told(there)
    if not error:
        return escaped(report.named(outcome, signature))
    cut = error if len(error) <= LONGEST else f"{error[:LONGEST].rpartition(' ')[0]} ..."
    return escaped(f"raises {cut}" if outcome == "raises" else cut)


def tried(where: Place) -> list[tuple[str, str]]:
    """Each remedy that was meant for such a cell, in whichever precision, and whether it helps in the cells of its
    form that were run; those that do come first. Where it does in some cells only, be they of other forms, it is said
    what the others do. Upgrades aren't among them, nor what no such cell can have."""
    cell, found = replace(where.cell, precision=Cell.precision), {}
    for claim in where.failure.claims.values():
        if claim.kind in REMEDIES and "stack" not in claim.swap and claims.chosen(where.failure, claim, cell):
            every = verdicts.by_rules(where.failure, claim)
            sides = ([c for c in side if c.variant == cell.variant] for side in (every.speaks_for, every.against))
            own = claims.Verdict(claim, *map(tuple, sides))
            outcomes = known.outcomes(where.failure, verdicts.stack(where.failure, claim))
            told = "; ".join(report.where(where.failure, every, outcomes)) if every.word == "conditional" else ""
            but = f"; elsewhere {escaped(told)}" if told and own.word != "refuted" else ""
            found[prose(claim.text)] = own.word, but
    return [
        (text, f"{told}{found[text][1]}") for word, told in HELPS.items() for text in found if found[text][0] == word
    ]


def _form(where: Place) -> str:
    """What a reader has to know of the variant, unless it is the failure as it was reported."""
    remedy = where.variant.remedy
    if remedy == "broken":
        return ""
    return f", in the form `{remedy}`" if where.variant.broken else f", with the remedy `{remedy}`"


def _printed(output: str) -> str:
    """What the ranks told of themselves, and where each waits if they do, as a code block; empty where they told
    nothing."""
    waits = _waits(output)
    output = STACK.sub("", output)
    lines = re.sub(r"(?<=[^\s(])(?=rank \d)", "\n", output).splitlines()  # of two ranks at once, without its end
    told = sorted({plain(line) for line in lines if re.match(r"rank \d", line)})
    return "It prints:\n\n" + fenced("\n".join([*told[:SHOWN], *waits]), "text") if told or waits else ""


def _waits(output: str) -> list[str]:
    """Where each rank waits: the innermost frames, and of the others those in which the file's own code calls on."""
    told = []
    for rank, stack in STACK.findall(output):
        frames = [shortened(re.sub(r'"[^"]*/repro[.]py"', '"repro.py"', frame)) for frame in stack.splitlines()]
        own = [n for n, frame in enumerate(frames) if OWN.search(frame)]
        called = own[0] - 1 if own else len(frames)
        kept = [n for n in range(len(frames)) if n < INNERMOST or n == called or n in own]
        told.append(rank)
        for before, n in zip([-1, *kept], kept, strict=False):
            told += ["  ..."] * (n > before + 1) + [frames[n]]
    return told


def prose(text: str) -> str:
    """A text whose code stays code, and of which Markdown shows everything else as it is, in one line."""
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
