"""References: made once, again when their rank dies, and never again when the scenario itself fails."""

from pathlib import Path

from faultline.matrix import Cell
from faultline.ranks import Ended, RankEnd
from faultline.runner import TRIES, References

CELL = Cell("grpo_lora_no_grad", "broken", "ddp")
KILLED = Ended([RankEnd(exit=-9)])
FAILED = Ended([RankEnd({"error": {"traceback": "Traceback\nValueError: no such layer"}})])


class Server:
    """Answers as a rank server would: ends in turn, and a file where an end is None."""

    def __init__(self, *ends):
        self.ends = [*ends]

    def run(self, job, world_size):
        end = self.ends.pop(0)
        if end is None:
            Path(job["reference"]).write_text("reference")
        return end or Ended([RankEnd({"error": None})])


def test_a_reference_whose_rank_was_killed_is_made_again(tmp_path):
    """Breaks when one killed rank makes every later cell of its variant invalid."""
    server = Server(KILLED, None)
    path, problem = References(tmp_path).file(server, CELL)
    assert path.exists() and not problem
    assert References(tmp_path).file(server, CELL) == (path, ""), "it is made once for all workers"


def test_a_scenario_that_fails_is_not_tried_again(tmp_path):
    """Breaks when every cell of a broken scenario pays for its reference anew."""
    server = Server(FAILED)
    for _ in range(2):
        assert "no such layer" in References(tmp_path).file(server, CELL)[1]


def test_a_rank_that_always_dies_is_given_up(tmp_path):
    """Breaks when a reference that can't be made is tried for ever."""
    server = Server(*[KILLED] * TRIES)
    assert "died" in References(tmp_path).file(server, CELL)[1]
    assert not server.ends
