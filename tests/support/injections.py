"""Faults for `run_cell(..., inject=...)`: what one rank does where the others meet in an all-reduce."""

import itertools
import json
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from faultline.ranks.run import Injection

STEP = 1


def fault(act: Callable) -> Injection:
    """Have rank 1 do something at step 1, just before both meet."""

    def wrapped(results, setup):
        steps = itertools.count()

        def backward(loss):
            if next(steps) == STEP:
                if setup.rank == 1:
                    act(setup)
                dist.all_reduce(torch.zeros(1))
            results.backward(loss)

        return replace(results, backward=backward)

    return Injection(wrapped=wrapped)


def hang_up_and_leave(setup):
    """The peer sees its connection closed, and says so, a good while before the cause of it all is known."""
    dist.destroy_process_group()
    time.sleep(1.5)
    os._exit(7)


def sleep(setup):
    time.sleep(600)


def kill_the_server(setup):
    """Once: the next server's ranks find the mark of the first."""
    mark = Path(setup.folder).parent / "killed"
    if not mark.exists():
        mark.write_text(str(os.getpid()))
        os.kill(os.getppid(), signal.SIGKILL)


def show(setup):
    """Report what a rank finds around it."""
    import deepspeed

    facts = {
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
        "torch_threads": torch.get_num_threads(),
        "shm": deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"],
        "TMPDIR": os.environ.get("TMPDIR"),
        "folder": setup.folder,
    }
    raise AssertionError(json.dumps(facts))


NOTHING = Injection()
HANGS_UP = fault(hang_up_and_leave)
SLEEPS = fault(sleep)
KILLS_THE_SERVER = fault(kill_the_server)
SHOWS = fault(show)
