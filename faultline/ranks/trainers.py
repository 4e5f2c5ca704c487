"""Trainer-level cells: the real trainer, with the strategy given through its own arguments."""

import hashlib
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import TrainerCallback

from faultline import scenario, strategies
from faultline.base.errors import Impossible
from faultline.cells.cell import HALF
from faultline.ranks import accelerate, checkpointing, compare, life, parameters, saved, state
from faultline.ranks.job import FIRST, SECOND
from faultline.ranks.run import Run, loading, note_rows, note_use, show
from faultline.strategies import ROWS


def train(run: Run) -> None:
    """Build the failure's trainer, train it, and read its weights after every step."""
    report = run.report
    if run.setup.device.type == "cpu":
        accelerate.honest_on_cpu()
    accelerate.check_wraps(run.cell.strategy, run.setup)
    try:
        with scenario.building(), loading(run):
            trainer = run.module.trainer(run.variant, arguments(run), run.setup)
    except Exception:
        report.evidence["prepared"] = accelerate.prepared()  # all that there is of the strategy as yet
        raise
    check_checkpointing(trainer.args, run.cell.checkpointing)
    run.inject.model(trainer.model)
    run.inject.trainer(trainer, run.setup)
    tied = parameters.tied(trainer.model)
    scenario.share_dropout(trainer.model)
    sgd = (torch.optim.SGD, {"lr": trainer.args.learning_rate, "momentum": scenario.MOMENTUM})
    trainer.get_optimizer_cls_and_kwargs = lambda args, model=None: sgd
    trainer.add_callback(Reader(run, trainer))
    watch = run.watch(trainer.model)
    compute_loss = trainer.compute_loss

    def watched_loss(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        note_rows(run, inputs)
        with watch.training():
            loss = compute_loss(model, inputs, *args, **kwargs)
        report.losses.append((loss[0] if isinstance(loss, tuple) else loss).item())
        return loss

    trainer.compute_loss = watched_loss
    try:
        with scripted_sampling(run.setup.data_rank, getattr(trainer, "sample_blocks", 1), life.draws(run)) as drawn:
            trainer.train(resume_from_checkpoint=life.newest(run))
        if run.half == FIRST:
            life.remember(run, next(drawn))
        if run.checkpoint:
            saved.save(run, trainer, tied)
    finally:
        watch.close()
        report.evidence |= watch.evidence()
    mode = checkpointing.configured(trainer.model)
    if mode != report.evidence["checkpointing_set"]:
        raise Impossible(f"the trainer itself switches checkpointing to {mode} when it has sampled")


class Reader(TrainerCallback):
    """Reads the evidence as training begins, and the weights after every step."""

    def __init__(self, run: Run, trainer: Any) -> None:
        self.run, self.trainer, self.strategy = run, trainer, strategies.family(run.cell.strategy)
        self.entry = state.Entry(trainer.model, compare.copy, run.setup.rank)

    def on_train_begin(self, args: Any, progress: Any, control: Any, **kwargs: Any) -> None:
        run, trainer, evidence = self.run, self.trainer, self.run.report.evidence
        evidence |= self.strategy.evidence(trainer.model_wrapped)
        # Now: generation switches checkpointing off for a while, and may fail in it.
        evidence["checkpointing_set"] = checkpointing.configured(trainer.model)
        if run.variant.second:
            evidence["second"] = accelerate.placement(second_model(trainer, run.variant.second))
        show(run)
        if run.half != SECOND:  # which begins with what was loaded; it counts from where the first half began
            run.trace.initial.update(compare.copy(self.strategy.parameters(trainer.model_wrapped)))
            run.trace.held.update(compare.copy(state.buffers(trainer.model_wrapped)))
            run.trace.unsaved.update(compare.copy(state.unsaved(trainer.model_wrapped)))
        if statistics := state.batch_statistics(trainer.model):
            evidence["batch_statistics"] = statistics
        self.entry.expect()

    def on_step_begin(self, args: Any, progress: Any, control: Any, **kwargs: Any) -> None:
        if self.run.half == SECOND and not self.run.report.losses:  # once all is loaded, and before anything is drawn
            life.resumed(self.run, self.trainer)

    def on_step_end(self, args: Any, progress: Any, control: Any, **kwargs: Any) -> None:
        trace = self.run.trace
        note_use(self.run, self.trainer.model_wrapped)
        trace.add(None, self.strategy.parameters(self.trainer.model_wrapped))
        trace.keep(state.buffers(self.trainer.model_wrapped), self.entry.held, self.entry.replaced)
        self.entry.expect()
        if self.run.half == FIRST and progress.global_step == HALF:
            control.should_training_stop = True  # as somebody interrupts a training: its arguments are of the whole

    def on_save(self, args: Any, progress: Any, control: Any, **kwargs: Any) -> None:
        if self.run.half == FIRST:
            life.saved(self.run, progress.global_step)


def arguments(run: Run) -> dict[str, object]:
    """TrainingArguments' keywords for a cell: strategy, checkpointing, precision, batch and steps."""
    cell, setup = run.cell, run.setup
    on = cell.checkpointing != "off"
    return {
        "output_dir": str(Path(run.state or setup.folder) / "output"),
        "per_device_train_batch_size": ROWS // setup.data_world,
        "max_steps": cell.steps,
        "learning_rate": scenario.LR,
        "lr_scheduler_type": "linear" if setup.scheduled else "constant",
        "max_grad_norm": 0.0,
        "average_tokens_across_devices": True,  # transformers 4 counts each rank's tokens by themselves otherwise
        "gradient_checkpointing": on,
        "gradient_checkpointing_kwargs": {"use_reentrant": cell.checkpointing == "reentrant"} if on else None,
        "bf16": cell.precision == "bf16",
        "use_cpu": setup.device.type == "cpu",
        "save_strategy": "steps" if run.half == FIRST else "no",
        "save_steps": HALF,
        "report_to": "none",
        "logging_steps": 1,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "seed": 7,
        **({"torch_compile_backend": cell.compile} if run.compiled else {}),
        **strategies.family(cell.strategy).arguments(strategies.options(cell.strategy), setup),
    }


def second_model(trainer: Any, name: str) -> Any:
    """The trainer's model that is only read; raises LookupError where it keeps none beside the one it trains."""
    model = getattr(trainer, name, None)
    if model is None or model is trainer.model:
        raise LookupError(f"{type(trainer).__name__} has no model of its own in {name}")
    return model


def check_checkpointing(args: Any, asked: str) -> None:
    """Trainers overrule their user for some strategies; then the mode that was asked for can't be had."""
    mode = (args.gradient_checkpointing_kwargs or {}).get("use_reentrant")
    if asked != "off" and mode != (asked == "reentrant"):
        raise Impossible(f"the trainer itself sets use_reentrant={mode} here")


@contextmanager
def scripted_sampling(rank: int, blocks: int = 1, drawn: int = 0) -> Iterator[Iterator[int]]:
    """Sample the same completions however rows are spread over ranks and whatever rounding does.

    Generation runs as it is; only the draw is replaced, by a token that is a
    function of the row's place in the global batch and of the position. Never
    one of the special tokens, so that all completions have full length. A trainer
    that samples several times for each prompt has the copies side by side, or in
    `blocks` of all its prompts. So many were `drawn` before; the draws are counted on.
    """
    from tiny_models.tokenizer import SPECIAL, VOCABULARY

    position = itertools.count(drawn)

    def draw(probabilities: torch.Tensor, num_samples: int, **kwargs: Any) -> torch.Tensor:
        at, rows = next(position), len(probabilities)
        places: Sequence[int] = range(rank * rows, rank * rows + rows)
        if blocks > 1:
            places = [rank * rows + row % (rows // blocks) * blocks + row // (rows // blocks) for row in range(rows)]
        letters = range(len(SPECIAL), len(VOCABULARY))
        tokens = [letters[_hash(place, at) % len(letters)] for place in places]
        return torch.tensor(tokens, device=probabilities.device).unsqueeze(1)

    with mock.patch("torch.multinomial", draw):
        yield position


def _hash(*values: int) -> int:
    return int.from_bytes(hashlib.blake2b(repr(values).encode(), digest_size=4).digest(), "big")
