"""What `clean-results` removes, and what it leaves."""

from faultline.maintain import machine


def test_the_newest_runs_stay_with_the_latest_and_what_is_no_run(tmp_path, monkeypatch, capsys):
    """Breaks when the run that every other command reads is removed, or files that somebody exported."""
    monkeypatch.setattr(machine, "RESULTS", tmp_path)
    for day, kind in enumerate(("", "check-", "", "stack-"), 1):
        name = f"{kind}2026-01-0{day}T10-00-00"
        (tmp_path / name).mkdir()
        (tmp_path / name / "run.json").write_text("{}")
    (tmp_path / "exports").mkdir()
    (tmp_path / "latest").symlink_to("2026-01-01T10-00-00")
    assert machine.clean_results(20) == 0 and capsys.readouterr().out.startswith("0 runs")
    assert machine.clean_results(2) == 0 and capsys.readouterr().out.startswith("1 run removed from ")
    assert {entry.name for entry in tmp_path.iterdir()} == {
        *("2026-01-01T10-00-00", "2026-01-03T10-00-00", "stack-2026-01-04T10-00-00", "latest", "exports")
    }
