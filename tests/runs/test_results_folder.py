"""The folder of a run that somebody names: begun once, gone on with by the same command, one process at a time."""

import subprocess
import sys
import threading

import pytest

from faultline.base.errors import UsageError
from faultline.cells.cell import Cell
from faultline.runs import folders, storage

CELLS = [Cell.parse(f"zero3_dummy_loss/broken/{name}/off/fp32/w2/cpu") for name in ("ddp", "zero3")]
HOLDS = """
import pathlib, sys
from faultline.runs import storage
with storage.alone(pathlib.Path(sys.argv[1])):
    print("in", flush=True)
    sys.stdin.read()
"""


def begun(path, cells=CELLS, resume=True, stack=None):
    return folders.begun("run", cells, stack or {"torch": "2.9.0"}, {}, resume=resume, named=path)


def test_the_same_command_begins_a_named_run_and_goes_on_with_it(tmp_path):
    """Breaks when a shard that is started again, on another machine, goes on with whichever run is the newest."""
    first, second = tmp_path / "shard-1", tmp_path / "shard-2"
    for path in (first, second):
        path.mkdir()
    assert begun(first)[0].path == first and begun(second, CELLS[:1])[0].path == second
    assert begun(first)[0].info().cells == tuple(cell.id for cell in CELLS)
    assert begun(second, CELLS[:1])[0].info().cells == (CELLS[0].id,)
    assert not (tmp_path / "latest").exists()


def test_a_named_run_is_neither_begun_twice_nor_gone_on_with_for_another_question(tmp_path):
    begun(tmp_path)
    with pytest.raises(UsageError, match="add --resume"):
        begun(tmp_path, resume=False)
    with pytest.raises(UsageError, match="other cells"):
        begun(tmp_path, CELLS[:1])
    with pytest.raises(UsageError, match="another stack"):
        begun(tmp_path, stack={"torch": "2.8.0"})


@pytest.mark.slow
def test_a_second_process_waits_until_the_first_has_ended(tmp_path, capsys):
    """Breaks when a node that was given up, and still is at work, writes into a file beside the one in its place."""
    holds = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holds.stdout.readline() == "in\n"
    inside = threading.Event()

    def enter():
        with storage.alone(tmp_path):
            inside.set()

    waits = threading.Thread(target=enter)
    waits.start()
    assert not inside.wait(0.5)
    holds.kill()
    holds.wait()
    waits.join(20)
    assert inside.is_set() and "waiting until it ends" in capsys.readouterr().err
