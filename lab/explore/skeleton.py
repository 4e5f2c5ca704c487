"""From a finding to a failure's folder: its model and its loop written out, with what is known of it beside them."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import FileSystemLoader

from faultline.base.errors import UsageError
from faultline.base.text import listing
from faultline.catalogue.outcomes import Outcome
from faultline.export import emit
from faultline.trainers import TRL
from lab.explore.findings import Finding
from lab.programs import in_trl
from lab.programs.program import Program
from lab.programs.settings import SETTINGS, TRAINER, TRAINERS
from lab.programs.training import LIMIT

SHOWN = 60  # characters of an error by which it is known again
UPSTREAM = {"deepspeed": "deepspeedai/DeepSpeed", "torch": "pytorch/pytorch"}
ANY = ("*",)
WRITTEN: Mapping[str, tuple[Any, ...]] = {
    "layers": ANY,
    "width": ANY,
    "block": ("norm", "attention", "experts"),
    "container": ("sequence",),
    "tied": ANY,
    "calls": ANY,
    "spare": ANY,
    "frozen": ANY,
    "no_grad": ("part",),
    "method": ("model",),
    "sparse": ANY,
    "loss": ("auxiliary", "two passes", "weight penalty"),
    "accumulate": ANY,
    "accumulating": ANY,
    "optimizer": ("adamw", "no momentum", "adafactor", "groups"),
    "spare_runs": ANY,
    "unfreeze": ANY,
    "silent": ANY,
    "adapter": ANY,
    "through": ("accelerate",),
    "precision": ANY,
    "world_size": ANY,
    # With round_robin_gradients only what is read of gradients is wrong, and a file compares weights.
    **{key: ANY for key, each in SETTINGS.items() if each.family == "zero" and each.name != "round_robin_gradients"},
}
"""The features, and their values, that a failure's file can be written of."""
IN_TRL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("layers", "frozen", "adapter", "through", "accumulate", "checkpointing", "tokens"), ANY),
    **dict.fromkeys(("precision", "world_size"), ANY),
    "clip": ("norm",),
    "block": ("experts",),
    "tied": ("head",),
    **{key: ANY for key, each in SETTINGS.items() if each.family in TRAINERS},
}
"""The same of a program in a trainer of TRL."""
OPTIMIZERS = {
    "adamw": "return torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3)",
    "no momentum": "return torch.optim.SGD(model.parameters(), lr=0.05)",
    "adafactor": "return torch.optim.Adafactor(model.parameters(), lr=0.01)",
    "groups": (
        'biases = [p for name, p in model.named_parameters() if name.endswith("bias")]\n'
        'others = [p for name, p in model.named_parameters() if not name.endswith("bias")]\n'
        'groups = [{"params": others}, {"params": biases, "lr": 0.025}]\n'
        'return torch.optim.SGD([group for group in groups if group["params"]], lr=0.05, momentum=0.9)'
    ),
    "sgd": "return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)",
}
TEMPLATES = emit.TEMPLATES.overlay(loader=FileSystemLoader(Path(__file__).parent))
MEASURED = "<!-- measured: begin -->\n<!-- measured: end -->\n"


def not_written(program: Program) -> list[str]:
    """The features of a program that no failure's file is written of yet."""
    written = IN_TRL if program.in_trl else WRITTEN
    return [
        name
        for name, value in program.chosen
        if name not in written or (written[name] != ANY and value not in written[name])
    ]


def write(finding: Finding, folder: Path, by_hand: bool = False) -> list[str]:
    """Write a failure's folder of a finding; gives the features that are to be written into it by hand.

    Raises UsageError for a finding that has some, unless they are wanted so.
    """
    lacks = not_written(finding.case.program)
    if lacks and not by_hand:
        raise UsageError(f"{finding.name}: no failure's file is written of {listing(lacks)} yet")
    folder.mkdir(parents=True)
    title = finding.about.title
    (folder / "failure.py").write_text(failure(finding, lacks))
    if finding.about.links:
        (folder / "history.toml").write_text(f"records = {json.dumps(list(finding.about.links))}\n")
    (folder / "recognise.toml").write_text(f"[project.broken]\nlook_for = {json.dumps(finding.case.program.words)}\n")
    (folder / "expected.toml").write_text("")
    searched = "; ".join(f"`{each}`" for each in finding.about.searched) or "nothing yet"
    record = f"{', '.join(finding.about.links) or 'None'}; `faultline explore` met it"
    (folder / "README.md").write_text(
        f"# {folder.name}\n\n{title}.\n\n"
        f"**Record.** {record}. What was searched for: {searched}.\n\n"
        f"**Cause.** {finding.about.cause or 'Not read yet.'}\n\n"
        f"**What is run.** {finding.case.program.words}.\n\n{MEASURED}"
    )
    return lacks


def failure(finding: Finding, lacks: Sequence[str] = ()) -> str:
    """The source of failure.py, without features that it `lacks`, which its first lines name."""
    case, seen = finding.case, finding.seen
    program, package = case.program, finding.package
    by_hand = [f"{name}={value!r}" for name, value in program.chosen if name in lacks]
    program = program.with_only(name for name, _ in program.chosen if name not in lacks)
    since = finding.about.since.removeprefix("since ") or f"{package} {seen.stack.get(package, '')} (where it was seen)"
    did = seen.where.get(case.strategy)
    raises = seen.outcome == Outcome.RAISES
    text = TEMPLATES.get_template("failure_in_trl.py.j2" if program.in_trl else "failure.py.j2").render(
        title=json.dumps(finding.about.title),
        sentence=finding.about.title.replace('"', "'"),
        since=since,
        by_hand=by_hand,
        upstream=UPSTREAM.get(package, f"huggingface/{package}"),
        signature=signature(finding) if raises else "",
        pattern=pattern(seen.detail) if raises else "",
        strategies=[name for name, other in seen.where.items() if other == did or other == Outcome.TRAINS],
        helping=next((name for name, other in seen.where.items() if other == Outcome.TRAINS), ""),
        spec=program.spec,
        training=program.training,
        **(_of_trl(program) if program.in_trl else _of_loop(program)),
    )
    return text.rstrip() + "\n"


def _of_loop(program: Program) -> dict[str, Any]:
    """What the file of a loop of one's own has beside model and training."""
    training = program.training
    kind = training.optimizer if training.optimizer != "sgd" or training.unfreeze else ""
    body = "\n".join(f"        {line}" for line in OPTIMIZERS[kind].splitlines()) if kind else ""
    return {"trainer": "", "optimizer": body, "config": program.deepspeed}


def _of_trl(program: Program) -> dict[str, Any]:
    """What the file of a trainer of TRL has beside model and training."""
    name, training = program.trainer, program.training
    settings: dict[str, Any] = in_trl.of_rows(name) | program.nested(TRAINER) | program.nested(name)
    if training.accumulate > 1:
        settings["gradient_accumulation_steps"] = training.accumulate
    if training.clip == "norm":
        settings["max_grad_norm"] = LIMIT["norm"]
    columns = "" if TRL[name].samples else TRL[name].columns
    rows = {"columns": columns, "letters": in_trl.letters(training), "times": in_trl.TIMES}
    return {"trainer": name, "words": in_trl.word(name), "settings": settings, **rows}


def signature(finding: Finding) -> str:
    """A name for a finding's error, from its kind."""
    return re.sub(r"[^a-z0-9]+", "-", finding.seen.kind.lower()).strip("-")


def pattern(detail: str) -> str:
    """A pattern for an error, as source: how its message begins, with any numbers."""
    message = detail.partition(": ")[2] or detail
    parts = re.split(r"\d+", message[:SHOWN].rstrip())
    return "r" + json.dumps(r"\d+".join(re.escape(part).replace(r"\ ", " ") for part in parts)).replace("\\\\", "\\")
