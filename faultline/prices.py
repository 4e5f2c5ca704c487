"""What remedies cost: time per step and bytes held, printed as JSON for bench."""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial

import torch

STEPS = 30


def main() -> None:
    print(json.dumps([*checkpointing(), *unused_parameters()]))


def checkpointing() -> list[tuple[str, str]]:
    """Failure zero_double_reduction, claim a: non-reentrant checkpointing is slower and takes more memory.

    A model large enough for its activations to show in the process's peak
    memory; each mode in a forked process of its own.
    """
    found = {mode: in_child(partial(cost, mode)) for mode in ("off", "reentrant", "non-reentrant")}
    rows = []
    for mode in ("reentrant", "non-reentrant"):
        slower, held = (found[mode][i] / found["off"][i] for i in (0, 1))
        rows.append((f"{mode} checkpointing / none: step time, peak memory of a step", f"{slower:.2f}, {held:.2f}"))
    return rows


def cost(mode: str) -> tuple[float, int]:
    """Seconds of a step, and the bytes by which it raised this process's peak memory."""
    from tiny_models.qwen2 import qwen2

    model = qwen2(hidden_size=128, intermediate_size=512, num_hidden_layers=6)
    if mode != "off":
        model.gradient_checkpointing_enable({"use_reentrant": mode == "reentrant"})
        model.enable_input_require_grads()
    ids = torch.randint(10, 60, (8, 256), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        model(input_ids=ids).logits.float().pow(2).mean().backward()

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return seconds(step, 5), peak << 10


def in_child(work: Callable[[], tuple[float, int]]) -> tuple[float, int]:
    """Run in a forked process, whose peak memory starts from what it holds now."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writing, json.dumps(work()).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        told = json.load(pipe)
    os.waitpid(pid, 0)
    return told[0], told[1]


def unused_parameters() -> list[tuple[str, str]]:
    """Failure ddp_unused_vision_tower, claim a: the price of looking for unused parameters, where none are unused."""
    found = {find: on_two_ranks(partial(ddp_step, find)) for find in (False, True)}
    return [("DDP step time on two ranks with find_unused_parameters / without", f"{found[True] / found[False]:.2f}")]


def ddp_step(find: bool, rank: int) -> tuple[float, int]:
    from torch.nn.parallel import DistributedDataParallel

    from tiny_models.data import image_text_batch
    from tiny_models.gemma3 import gemma3

    model = DistributedDataParallel(gemma3(), find_unused_parameters=find)
    inputs = image_text_batch(0, rank, 2, "dummy")["inputs"]
    return seconds(lambda: model(**inputs).logits.pow(2).mean().backward()), 0


def on_two_ranks(work: Callable[[int], tuple[float, int]]) -> float:
    """The seconds that rank 0 of two forked ranks tells."""
    with tempfile.TemporaryDirectory(prefix="faultline-prices-") as folder:

        def rank(number: int) -> tuple[float, int]:
            store = f"file://{folder}/store"
            torch.distributed.init_process_group("gloo", init_method=store, rank=number, world_size=2)
            return work(number)

        other = os.fork()
        if other == 0:
            rank(1)
            signal.pause()
        try:
            return in_child(partial(rank, 0))[0]
        finally:
            os.kill(other, signal.SIGKILL)
            os.waitpid(other, 0)


def seconds(step: Callable[[], None], steps: int = STEPS) -> float:
    """The median time of a step, after a few to warm up."""
    times = []
    for number in range(steps + 3):
        started = time.perf_counter()
        step()
        if number >= 3:
            times.append(time.perf_counter() - started)
    return statistics.median(times)


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    main()
