"""`run --fleet ray` where no cluster is: a small one is started, and goes with the run, however that ends."""

import contextlib
import functools
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from faultline.base.errors import EXIT_USAGE
from faultline.base.paths import ROOT
from faultline.runs import scratch
from tests.support.slurm import free_ports
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.nightly]

PROGRAM = """
import sys, tempfile
from pathlib import Path
from faultline.base import paths
paths.RESULTS = Path(sys.argv[1])
from faultline.fleet import cluster
cluster.FOLDER = sys.argv[2]
from faultline.cli import app
sys.exit(app.main(sys.argv[3:]))
"""
CELLS = ("--failure", "zero3_dummy_loss", "--strategy", "single,ddp", "--precision", "fp32", "--fresh")


@pytest.fixture
def place():
    """A folder for the cluster, whose name is short: it has sockets."""
    folder = tempfile.mkdtemp(prefix="f-", dir="/tmp")
    yield Path(folder)
    shutil.rmtree(folder)


def command(results, place, *more):
    return [sys.executable, "-c", PROGRAM, str(results), str(place), "run", "--fleet", "ray", *CELLS, *more]


ended = functools.partial(subprocess.run, cwd=ROOT, capture_output=True, text=True, check=False)


def started(*words, **options):
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options)


def answers(port):
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


def left(place):
    """What is left of a cluster, in its folder or at work there."""
    every = psutil.process_iter(["cmdline"])
    ray = [process for process in every if str(place) in " ".join(process.info["cmdline"] or ())]
    return [*place.glob(f"{scratch.PREFIX}*"), *ray]


def test_a_killed_run_leaves_no_cluster(tmp_path, place):
    """Breaks when the processes of a killed run's cluster live on, or their folder is there after the next run."""
    with started(*command(tmp_path, place)) as run:
        wait_until(lambda: any(tmp_path.glob("2*/cells.jsonl")) or run.poll() is not None, 120)
        assert run.poll() is None, "it ended before it could be killed"
        os.kill(run.pid, signal.SIGKILL)
    done = ended(command(tmp_path, place, "--resume"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert not left(place)


def test_two_runs_at_a_time_have_a_cluster_each(tmp_path, place):
    """Breaks when the second one takes the first one's cluster, which ends with it, or a cluster or token is left."""
    home = tmp_path / "home"
    with started(*command(tmp_path / "first", place)) as first:
        wait_until(lambda: any((tmp_path / "first").glob("2*/cells.jsonl")) or first.poll() is not None, 120)
        assert first.poll() is None, "it ended before there was a second one"
        done = ended(command(tmp_path / "second", place), env=os.environ | {"HOME": str(home)})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 not as expected" in done.stdout and not (home / ".ray").exists()
    assert first.returncode == 0 and not left(place)


def test_a_cluster_with_a_token_says_that_it_asks_for_it(tmp_path, place):
    """Breaks when a cluster that somebody started as Ray's documentation says ends in a traceback, or can't be used."""
    [port] = free_ports(1)
    address, token = f"127.0.0.1:{port}", {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
    plain = {name: value for name, value in os.environ.items() if name not in token}
    start = ("start", "--head", "--block", "--num-cpus=2", "--include-dashboard=false", f"--temp-dir={place}")
    words = [sys.executable, "-m", "ray.scripts.scripts", *start, "--node-ip-address=127.0.0.1", f"--port={port}"]
    with started(*words, env=plain | token) as head:
        wait_until(lambda: answers(port) or head.poll() is not None, 60)
        refused = ended(command(tmp_path, place, "--address", address), env=plain)
        done = ended(command(tmp_path, place, "--address", address), env=plain | token)
        head.terminate()
    assert refused.returncode == EXIT_USAGE, refused.stderr
    assert "if it asks for a token, set RAY_AUTH_MODE=token" in refused.stderr
    assert done.returncode == 0, done.stdout + done.stderr
