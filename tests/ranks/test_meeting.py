"""How the ranks of a cell meet."""

import pytest
import torch

from faultline.ranks import meeting
from faultline.ranks.job import Job


@pytest.mark.parametrize(("release", "libuv"), [("2.7.1", False), ("2.8.0", True), ("2.13.0+cpu", True)])
def test_the_socket_of_a_cell_is_taken_by_every_release(release, libuv, monkeypatch):
    """Breaks when no cell runs with torch before 2.8, whose libuv takes no socket that is open."""
    asked = {}
    monkeypatch.setattr(torch, "__version__", release)
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: False)
    monkeypatch.setattr(torch.distributed, "TCPStore", lambda *args, **options: asked.update(options))
    monkeypatch.setattr(torch.distributed, "init_process_group", lambda *args, **options: None)
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "")
    meeting.meet(0, 2, torch.device("cpu"), "gloo", Job("cell", port=1, listening=3))
    assert asked["use_libuv"] is libuv and asked["master_listen_fd"] == 3
