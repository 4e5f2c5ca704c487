"""The cells that run by day stand for all others: each rule, variant, strategy and mode is among them."""

import subprocess

import pytest

from faultline.base.paths import REPROS, ROOT
from faultline.catalogue.loading import failures
from faultline.cells import expected
from faultline.cells.selection import Selection, select
from faultline.observations import measured
from faultline.strategies import family_name
from tests.support import night
from tests.support.program import python

VERSIONS = measured.pinned()
CELLS = select(failures(), Selection())


@pytest.fixture(scope="module")
def by_day():
    return night.cells_by_day(CELLS, VERSIONS)


def deciding(cells):
    """The rules that decide them, by variant: read from the catalogue itself, not as the cells by day were chosen."""
    rules = {name: expected.rules(failure) for name, failure in failures().items()}
    return {(cell.failure, cell.variant, expected.first_rule(rules[cell.failure], cell, VERSIONS)) for cell in cells}


def test_each_rule_that_decides_a_cell_decides_one_by_day(by_day):
    """Breaks when a rule of an expected.toml could become wrong, and nobody would see it before the night."""
    assert deciding(CELLS) == deciding(by_day)


def test_each_variant_runs_by_day_in_each_family_that_it_has(by_day):
    wanted = {(cell.failure, cell.variant, family_name(cell.strategy)) for cell in CELLS}
    assert wanted == {(cell.failure, cell.variant, family_name(cell.strategy)) for cell in by_day}


@pytest.mark.parametrize("axis", night.SPREAD)
def test_each_value_of_an_axis_runs_by_day(by_day, axis):
    """Breaks when a strategy, a mode, a precision or a world size is left to the night altogether."""
    assert {getattr(cell, axis) for cell in CELLS} == {getattr(cell, axis) for cell in by_day}


def test_cells_of_one_kind_are_not_all_run(by_day):
    assert len(by_day) < len(CELLS) / 3


def test_pytest_has_the_cells_by_day_and_all_of_what_changed(request, monkeypatch):
    """Breaks when `make test` runs no cell, or others than were chosen, or `SINCE` adds none."""
    conftest, name = request.config.pluginmanager.get_plugin(str(ROOT / "conftest.py")), "zero3_dummy_loss"
    file = conftest.Cells.from_parent(request.session, path=REPROS / name / "failure.py")
    for changed in (set(), {name}):
        monkeypatch.setitem(request.config.stash, conftest.CHANGED, changed)
        items = [*file.collect()]
        cells = {item.cell for item in items}
        wanted = cells if changed else night.cells_by_day([item.cell for item in items], VERSIONS)
        assert {item.cell for item in items if not item.get_closest_marker("nightly")} == wanted


ENDS = """
import pytest
from time import sleep
def test_that_is_long(): sleep(0.2)
@pytest.mark.slow
def test_that_says_so(): sleep(0.2)
@pytest.mark.nightly
def test_of_the_night(): pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_ends_with_what_is_long_and_what_it_left_out(tmp_path, workers):
    """Breaks when a test grows long, or is left to the night, and nobody is told."""
    (tmp_path / "conftest.py").write_text("from tests.support import night\nnight.LONG = 0.1\n")
    (tmp_path / "test_it.py").write_text(ENDS)
    words = ("-m", "pytest", "-c", ROOT / "pytest.ini", "--rootdir", tmp_path, "-n", workers, "-m", "not nightly")
    done = python(*words, "-p", "tests.support.night", tmp_path, PYTEST_ADDOPTS="")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " s test_it.py::test_that_is_long" in done.stdout and " s test_it.py::test_that_says_so" not in done.stdout
    assert "\nleft out here: 1 test; make test-matrix runs" in done.stdout


def test_a_failure_whose_folder_differs_is_known(tmp_path, monkeypatch):
    """Breaks when `make test SINCE=...` leaves out cells of a failure that was edited, committed or not."""

    def git(*words):
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    for name in ("one", "two", "three"):
        (tmp_path / "repros" / name).mkdir(parents=True)
        (tmp_path / "repros" / name / "failure.py").write_text("")
    (tmp_path / "other.py").write_text("")
    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "begun")
    (tmp_path / "repros" / "two" / "failure.py").write_text("changed")
    git("commit", "-qam", "changed")
    (tmp_path / "repros" / "three" / "new.toml").write_text("")
    (tmp_path / "other.py").write_text("changed")
    monkeypatch.setattr(night, "ROOT", tmp_path)
    assert night.changed_failures("HEAD~1") == {"two", "three"}
    assert night.changed_failures("HEAD") == {"three"}
    with pytest.raises(pytest.UsageError, match="--since --output=x"):
        night.changed_failures("--output=x")
