"""What `clean-results` removes, and what it leaves."""

import pytest

from faultline.maintain import machine


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    for day, kind in enumerate(("", "check-", "", "stack-"), 1):
        name = f"{kind}2026-01-0{day}T10-00-00"
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "exports").mkdir()
    return tmp_path


def test_the_newest_runs_stay_with_the_latest_and_what_is_no_run(results, capsys):
    """Breaks when the run that every other command reads is removed, or files that somebody exported."""
    (results / "latest").symlink_to("2026-01-01T10-00-00")
    assert machine.clean_results(20) == 0 and capsys.readouterr().out.startswith("0 runs")
    assert machine.clean_results(2) == 0 and capsys.readouterr().out.startswith("1 run removed from ")
    assert {entry.name for entry in results.iterdir()} == {
        *("2026-01-01T10-00-00", "2026-01-03T10-00-00", "stack-2026-01-04T10-00-00", "latest", "exports")
    }
