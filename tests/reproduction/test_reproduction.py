"""Reports: the facts that they have, the cells and the stack that follow, and what runs there."""

import shutil

import pytest

from faultline.base.errors import UsageError
from faultline.catalogue.loading import failures
from faultline.maintain import score_reports
from faultline.reproduction import command, facts
from faultline.reproduction.command import ReproduceRequest
from faultline.stacks.index import Release

ACCUMULATED = score_reports.FOLDER / "007-stage-one-beats-stage-two"
DATES = {"deepspeed": "2025-11-05", "transformers": "2025-10-14", "trl": "2024-09-01"}
VERSIONS = {"deepspeed": "0.18.2", "transformers": "4.57.1", "trl": "0.10.1"}


@pytest.fixture(autouse=True)
def index(monkeypatch):
    monkeypatch.setattr(command.index, "releases", lambda name: [Release(VERSIONS[name], DATES[name])])


def test_a_config_says_what_ran_and_each_fact_its_place():
    """Breaks when a text that compares engines outranks the config, or a fact has no place."""
    known = facts.read([str(ACCUMULATED)])
    assert known.left["strategy"] == {"zero2", "zero2-small"} and known.versions == {"deepspeed": "0.18.2"}
    places = {fact.name: fact.place for fact in known.facts}
    assert "ds_config.json:4" in places["strategy"] and places["deepspeed"] == "the text"


def test_code_in_a_report_is_read_and_never_run(tmp_path):
    """Breaks when a report's code is executed, or a block of it isn't read as a file of its language."""
    report, touched = tmp_path / "issue.md", tmp_path / "touched"
    code = f"open({str(touched)!r}, 'w')\nfrom trl import SFTConfig\nSFTConfig(gradient_checkpointing=True)\n"
    report.write_text(
        f'It never learns.\n\n```python\n{code}```\n\n```json\n{{"zero_optimization": {{"stage": 3}}}}\n```\n'
    )
    known = facts.read([str(report)])
    assert known.left["strategy"] >= {"zero3"} and not touched.exists()


def test_the_stack_is_the_reports_and_says_its_guesses():
    """Breaks when a report's versions are replaced silently, or what it doesn't name isn't of its time."""
    asked = {name: VERSIONS[name] for name in ("deepspeed", "transformers")}
    stack, [guess] = command.their_stack(ReproduceRequest([]), asked)
    assert {"deepspeed==0.18.2", "transformers==4.57.1"} <= {*stack.requirements} and stack.asof == "2025-11-12"
    assert "trl" in guess and "as of 2025-11-12" in guess
    stack, guesses = command.their_stack(ReproduceRequest([]), {"trl": "0.10.1"})
    assert "trl" in stack.requirements and "trl 0.10.1 is of 2024-09-01" in guesses[0]
    assert command.their_stack(ReproduceRequest([]), {})[0].here
    with pytest.raises(UsageError, match=r"no deepspeed==0\.0\.1"):
        command.their_stack(ReproduceRequest([]), {"deepspeed": "0.0.1"})


def test_the_nearest_cell_is_where_the_run_was():
    """Breaks when a report's strategy doesn't choose the cell, or a cell is run that never showed the failure."""
    known = facts.read([str(ACCUMULATED)])
    for name in ("zero2_ga_wrong_gradient", "ref_model_reloaded_from_path"):
        cells = command.nearest(failures()[name], known)
        assert cells and all(cell.broken and cell.strategy in known.left["strategy"] for cell in cells[:1])
    assert all(command.nearest(failure, known) for failure in failures().values()), "a failure without a cell to run"


def test_a_report_of_something_else_asks_for_what_would_help(tmp_path, asked):
    report = tmp_path / "issue.md"
    report.write_text("pip install fails with a compiler error, nvcc isn't found.")
    code, out, _ = asked("reproduce", str(report))
    assert code == 1 and "What would help most" in out and "results" not in out


@pytest.mark.nightly
@pytest.mark.slow
def test_a_report_is_reproduced_on_its_versions(tmp_path, monkeypatch, asked):
    """Breaks when nothing runs on a reporter's versions, or what helps there isn't tried."""
    monkeypatch.undo()
    shutil.copytree(ACCUMULATED, tmp_path / "report")
    code, out, _ = asked("reproduce", str(tmp_path / "report"), "--workers", "2")
    assert code == 0 and "REPRODUCED" in out and "deepspeed 0.18.2" in out
    assert "zero2_ga_wrong_gradient" in out and "an upgrade is enough" in out
