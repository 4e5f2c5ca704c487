"""The upstream issue of a cell: what happens, what is expected, the file, the environment, and where else it does."""

from __future__ import annotations

import re

from faultline import known, report, strategies
from faultline.export.facts import Place, documented, shown, told
from faultline.export.write import TEMPLATES, packages_of, write
from faultline.matrix import default_world
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


def write_issue(where: Place) -> str:
    """Markdown that can be pasted as it is."""
    text = write(where)
    error = shown(where) if where.kind == "raises" else ""
    happens = f"an error that matches `{documented(where)}`" if where.kind == "raises" else told(where)
    return TEMPLATES.get_template("issue.md.j2").render(
        title=escaped(where.failure.title),
        happens="the error below" if error else happens,
        trains=where.outcome == "trains",
        error=fenced(plain(error), "text") if error else "",
        cell=where.cell,
        variant=escaped(where.variant.remedy),
        broken=where.variant.remedy == "broken",
        file=fenced(text.rstrip("\n"), "python"),
        versions=packages_of(text),
        device="GPU, NCCL" if where.cell.device == "cuda" else "CPU, gloo",
        changed=[told for code, told in CHANGED.items() if code in text],
        rows=across(where),
        measured=stack_name(known.pinned()),
        records=where.failure.records,
        saves=where.saves,
    )


def across(where: Place) -> list[tuple[str, str]]:
    """What the same run does under each strategy, as the matrix knows it: strategies and the outcome they share."""
    found: dict[str, str] = {}
    for cell, outcome in known.outcomes(where.failure).items():
        same = ("variant", "checkpointing", "precision")
        world = cell.world_size in (where.cell.world_size, default_world(cell))
        if world and all(getattr(cell, axis) == getattr(where.cell, axis) for axis in same):
            found.setdefault(cell.strategy, report.named(*outcome))
    groups: dict[str, list[str]] = {}
    for name in strategies.names():
        if name in found:
            groups.setdefault(found[name], []).append(f"`{name}`")
    return [(", ".join(names), escaped(outcome)) for outcome, names in groups.items()]


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, in one line."""
    return re.sub(r"([\\\\`*_{}\[\]<>#|~])", r"\\\1", one_line(text))


def fenced(text: str, language: str) -> str:
    """A code block whose fence is longer than any in the text."""
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"
