"""What cells execute is recorded once for each stack, beside no measurement, and never of a cell that said nothing."""

import sys

import pytest

from faultline.base.errors import Impossible
from faultline.base.packages import versions
from faultline.catalogue.loading import failures
from faultline.cells.cell import Cell
from faultline.cells.selection import Selection, select
from faultline.ranks.report import Report
from faultline.runs import cache, executed, measurement, nodes, runner
from faultline.runs.cache import Cache
from faultline.runs.nodes import Ended, RankEnd
from faultline.stacks.environments import Environment
from tests.support import reports

HERE = Environment(sys.executable, "".join(f"{name}=={version}\n" for name, version in versions().items()))
CELLS = [Cell("zero3_dummy_loss", "broken", name) for name in ("ddp", "zero3")]


class Server:
    """A rank server whose ranks report what they are told to."""

    versions = versions()
    killed = False

    def __init__(self, folder, reports):
        self.folder, self.reports, self.jobs = folder, reports, []

    def run(self, job):
        self.jobs.append(job)
        return Ended([RankEnd(report) for report in self.reports])


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """`of` with a server of the test; gives a function that takes the reports of its ranks."""
    monkeypatch.setattr(cache, "of", lambda environment, device, again=0, here=True: Cache(environment.lock, again))

    def record(cells, *reports, packages=("trl",)):
        server = Server(tmp_path, reports)

        def run_batches(batches, workers, on_result):
            [batch] = batches
            references = type("References", (), {"file": lambda *_: runner.Reference(tmp_path)})()
            for cell in batch.cells:
                on_result(batch, batch.run(server, references, cell))

        monkeypatch.setattr(measurement, "run_batches", run_batches)
        monkeypatch.setattr(nodes, "run", Server.run)
        return executed.of(HERE, cells, packages, 1), server.jobs

    return record


def test_what_all_ranks_executed_is_recorded_once(lab):
    """Breaks when a rank's functions are lost, or each question about a stack records it anew."""
    one = Report(executed={"trl/a.py": ["", "f"], "torch/a.py": ["f"], "trl_x/a.py": ["g"]})
    other = Report(executed={"trl/a.py": ["g"]})
    ran, jobs = lab(CELLS[:1], one, other)
    assert ran == {CELLS[0]: {("trl/a.py", ""), ("trl/a.py", "f"), ("trl/a.py", "g")}}
    assert [job.executed for job in jobs] == [True]
    again, jobs = lab(CELLS[:1], one, other)
    assert again == ran and jobs == []
    both, jobs = lab(CELLS, one, other)
    assert [job.cell for job in jobs] == CELLS[1:] and {*both} == {*CELLS}
    assert not Cache(HERE.lock).take(CELLS), "a recording is no result"
    other, jobs = lab(CELLS[:1], packages=("torch", "trl_y"))
    assert other == {CELLS[0]: {("torch/a.py", "f")}} and jobs == [], "all of it is kept, and what is asked for is read"
    assert lab(CELLS[:1], packages=("trl_y",))[0] == {CELLS[0]: frozenset()}, "it is known to execute nothing of it"


def test_a_cell_of_which_no_rank_reported_is_unknown_and_one_that_can_report_nothing_is_asked_once(lab):
    """Breaks when a hang by chance says that a cell executes nothing, or each question runs again what crashes."""
    assert lab(CELLS[:1], None)[0] == {}
    ran, jobs = lab(CELLS[:1], Report(executed={"trl/a.py": ["f"]}))
    assert len(jobs) == 1 and {*ran} == {CELLS[0]}
    impossible = Report(error=reports.error("Impossible", "the trainer refuses", kind=Impossible.kind))
    assert lab(CELLS[1:], impossible, impossible)[0] == {}
    assert lab(CELLS[1:], impossible, impossible) == ({}, [])


def test_each_cell_has_one_that_stands_for_it(lab):
    """Breaks when a cell is taken for one of another failure, variant, family or mode, or a recorded one isn't used."""
    cells = select(failures(), Selection.parse(failure="grpo_lora_no_grad", strategy="zero*,ddp"))
    chosen = executed.representatives(HERE, cells)
    assert {*chosen} == {*cells} and len({*chosen.values()}) < len(cells) / 2
    for cell, other in chosen.items():
        alike = [(each.failure, each.variant, each.checkpointing, each.strategy[:3]) for each in (cell, other)]
        assert alike[0] == alike[1] and executed.kind_of(cell) == executed.kind_of(other) and other.precision == "fp32"
    known = next(cell for cell in cells if cell.precision == "bf16")
    lab([known], Report(executed={"trl/a.py": ["f"]}))
    assert executed.representatives(HERE, cells)[known] == known


@pytest.mark.slow
def test_real_ranks_record_what_the_engine_executes(shared_server):
    """Breaks when a strategy's engine isn't in the record of its cells, or is in that of others."""
    ran = executed.of(Environment(sys.executable, HERE.lock), CELLS, ("deepspeed", "torch"), 1)
    names = {cell: {name for file, name in ran[cell] if file.startswith("deepspeed/runtime/zero/")} for cell in CELLS}
    assert "DeepSpeedZeroOptimizer_Stage3.__init__" in names[CELLS[1]]
    assert not {name for name in names[CELLS[0]] if "Stage3" in name}, "DDP has no engine of DeepSpeed"
    assert any(file == "torch/nn/parallel/distributed.py" and "forward" in name for file, name in ran[CELLS[0]])
    measured = nodes.run(shared_server, runner.Job(CELLS[0], 2)).ranks[0].report
    assert not measured.executed, "a measured run records nothing"
