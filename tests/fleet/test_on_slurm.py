"""The scripts on a real Slurm of three nodes: every cell has one result, the same as here, whatever dies on the way."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from faultline.base.paths import ROOT
from tests.support.slurm import NoPackages, Slurm, unpacked, wait

pytestmark = pytest.mark.nightly
PROGRAM = [sys.executable, "-P", str(ROOT / "faultline" / "__main__.py")]
STACK = ROOT / ".venv" / "bin" / "python"
FEW = "--failure=zero3_dummy_loss --strategy=ddp,zero2,fsdp2 --checkpointing=off --precision=fp32 --world=2".split()
IN_TIME = 400  # seconds; nothing but a hang takes longer


@pytest.fixture(scope="module")
def slurm():
    """Three nodes on this machine, of which nothing is left at the end."""
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    try:
        cluster = Slurm(folder, unpacked(folder / "packages"))
    except NoPackages as why:
        shutil.rmtree(folder)
        pytest.skip(str(why))
    cluster.environment |= {"FAULTLINE_CACHE": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    (folder / "tmp").mkdir()
    cluster.start()
    yield cluster
    left = cluster.stop()
    shutil.rmtree(folder)
    assert not left, "a job's processes outlive it"


@pytest.fixture(autouse=True)
def no_files_are_left(slurm):
    """Breaks when a job's files outlive it, or a Ray cluster's."""
    yield
    with contextlib.suppress(AssertionError):
        wait(lambda: not files(slurm), 30, "files outlive a job")
    assert not files(slurm)


def files(slurm):
    folders = [*Path(slurm.environment["TMPDIR"]).glob("faultline-*"), *Path("/tmp").glob("faultline-ray-*")]
    return [file for folder in folders for file in (folder, *folder.rglob("*"))]


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """What the cells do on this machine, without Slurm."""
    folder = tmp_path_factory.mktemp("here") / "run"
    environment = {**os.environ, "FAULTLINE_CACHE": str(folder.parent / "cache")}
    words = ["run", *FEW, f"--python={STACK}", "--results", str(folder), "--workers=2"]
    done = subprocess.run([*PROGRAM, *words], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return outcomes(folder)


def outcomes(folder):
    """The outcome of each cell in a results folder, which has one line for each."""
    lines = [json.loads(line) for line in (folder / "cells.jsonl").read_text().splitlines()]
    assert max(Counter(line["id"] for line in lines).values()) == 1, "a cell has two results"
    return {line["id"]: (line["outcome"], line["signature"], line["verdict"]) for line in lines}


def submitted(slurm, folder, *words):
    """Write and submit a run's scripts; gives the numbers of the jobs."""
    asked = ["fleet", "slurm", *FEW, f"--python={STACK}", "--cpus=2", "--workers=1", "--results", str(folder), *words]
    done = subprocess.run([*PROGRAM, *asked], env=slurm.environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return started(slurm, folder)


def started(slurm, folder):
    """Submit a run's scripts, also once more; gives the numbers of the jobs."""
    out = slurm.ask("bash", str(folder / "submit.sh"))
    assert out.startswith("submitted: "), out
    return [word for word in out.partition(";")[0].replace(",", "").split() if word.isdigit()]


def until_a_cell_ends(slurm, cells):
    wait(lambda: cells.exists() and cells.read_text().count("\n"), IN_TIME, "no cell ends", slurm)


def back(slurm, node):
    """Start a node again that was killed: one without power clears nothing up."""
    for left in files(slurm):
        shutil.rmtree(left)
    slurm.start_node(node)
    wait(lambda: "idle" in slurm.ask("sinfo", "-h", "-n", node, "-o", "%T"), 60, "the node doesn't come back")


def logs(folder):
    return "\n".join(f"== {file.name}\n{file.read_text()}" for file in sorted((folder / "logs").iterdir()))


def test_three_shards_give_every_cell_once(slurm, here, tmp_path):
    """Breaks when the scripts don't run as they stand, or shards and their merge lose or change a cell."""
    folder = tmp_path / "it's a run"
    shards, merge = submitted(slurm, folder, "--nodes=3", "--sbatch=time=30", "--sbatch=comment=it's # odd")
    assert slurm.ended(merge, IN_TIME) == ("COMPLETED", "0:0"), logs(folder)
    assert [slurm.job(f"{shards}_{number}")["ExitCode"] for number in (1, 2, 3)] == ["0:0"] * 3
    assert outcomes(folder / "merged") == here


def test_a_node_that_dies_costs_no_cell(slurm, here, tmp_path):
    """Breaks when a requeued shard doesn't find its run, measures a cell twice, or the merge doesn't wait for it."""
    folder = tmp_path / "run"
    shards, merge = submitted(slurm, folder, "--nodes=2", "--fresh")
    first = folder / "shard-1" / "cells.jsonl"
    until_a_cell_ends(slurm, first)
    task = f"{shards}_1"
    node = slurm.job(task)["NodeList"]
    slurm.kill_node(node)
    before = outcomes(first.parent)
    wait(lambda: slurm.job(task)["JobState"] == "PENDING", 120, "it isn't requeued", slurm)
    slurm.ask("scontrol", "update", f"jobid={task}", "StartTime=now")  # Slurm waits two minutes
    assert slurm.ended(merge, IN_TIME) == ("COMPLETED", "0:0"), logs(folder)
    assert "start 1" in (folder / "logs" / "shard-1.log").read_text()
    assert slurm.job(task)["NodeList"] != node
    assert outcomes(folder / "merged") == here
    assert before.items() <= outcomes(first.parent).items()
    back(slurm, node)


@pytest.mark.parametrize(("options", "part"), [(["--nodes=1"], "shard-1"), (["--nodes=2", "--ray"], "run")])
def test_a_run_that_was_cancelled_is_gone_on_with(slurm, here, tmp_path, options, part):
    """Breaks when a part of the cells passes for all, scancel leaves a cluster, or all is measured again."""
    folder, ray = tmp_path / "run", part == "run"
    first, *merge = submitted(slurm, folder, *options, "--fresh")
    until_a_cell_ends(slurm, folder / part / "cells.jsonl")
    slurm.ask("scancel", first)
    if ray:
        wait(lambda: not files(slurm), 60, "files outlive a job")
    else:
        assert slurm.ended(*merge, IN_TIME)[1] == "1:0", logs(folder)
        assert "missing: " in (folder / "logs" / "merge.log").read_text()
    before = outcomes(folder / part)
    assert 0 < len(before) < len(here)
    *_, again = started(slurm, folder)
    assert slurm.ended(again, IN_TIME) == ("COMPLETED", "0:0"), logs(folder)
    assert outcomes(folder / ("run" if ray else "merged")) == here
    assert before.items() <= outcomes(folder / part).items()


def test_a_node_of_a_ray_cluster_that_dies_costs_no_cell(slurm, here, tmp_path):
    """Breaks when the run ends with a node, loses what ran there, or a job that is cancelled leaves its cluster."""
    folder = tmp_path / "run"
    [job] = submitted(slurm, folder, "--nodes=2", "--ray", "--fresh")
    cells = folder / "run" / "cells.jsonl"
    until_a_cell_ends(slurm, cells)
    about = slurm.job(job)
    [other] = {*slurm.ask("scontrol", "show", "hostnames", about["NodeList"]).split()} - {about["BatchHost"]}
    slurm.kill_node(other)
    assert slurm.ended(job, IN_TIME) == ("COMPLETED", "0:0"), logs(folder)
    assert outcomes(folder / "run") == here
    back(slurm, other)


def test_cells_spread_over_a_ray_cluster_within_an_allocation(slurm, here, tmp_path):
    """Breaks when the head, its nodes and the run don't find each other, or the job leaves a cluster behind."""
    folder = tmp_path / "run"
    [job] = submitted(slurm, folder, "--nodes=2", "--ray", "--fresh", "--spread=2")
    assert slurm.ended(job, IN_TIME) == ("COMPLETED", "0:0"), logs(folder)
    assert outcomes(folder / "run") == here
