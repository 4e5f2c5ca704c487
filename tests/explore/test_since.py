"""Since which release a finding shows: what is asked for, and how the answer reads."""

import tomllib

import msgspec
import pytest

from faultline.base.errors import NeverReady, UsageError
from faultline.explore import findings, since
from faultline.releases.search import boundary
from faultline.runs import storage
from faultline.stacks.index import Release
from tests.support.judged import RIGHT, judged, raises

RELEASES = [Release(f"1.{number}", f"2026-0{number + 1}-01") for number in range(6)]


@pytest.mark.parametrize(
    ("did", "said", "kept"),
    [
        (
            [False, False, None, True, True, True],
            "introduced by x 1.3 (2026-04-01): 1.1 (2026-02-01) doesn't show it",
            "since x 1.3",
        ),
        ([True] * 6, "every x that could be tried shows it, 1.0 (2026-01-01) the oldest", "in every x from 1.0 on"),
        ([True] * 5 + [False], "the newest x doesn't show it", ""),
        ([None] * 6, "no x could be tried", ""),
    ],
)
def test_the_answer_names_both_sides(did, said, kept):
    """Breaks when a release is blamed that could not be tried, or nothing is said of the one before."""
    edge = boundary(len(RELEASES), did.__getitem__)
    assert since.answer("x", RELEASES, edge) == said
    assert since.since("x", RELEASES, edge) == kept


def test_since_when_is_kept_once(tmp_path):
    """Breaks when a second bisect leaves two answers, or what a person wrote is lost."""
    file = tmp_path / "finding.toml"
    file.write_text('title = "A title"\nstatus = "new"\ncause = "somewhere"\nlinks = [\n  "a",\n]\n')
    for words in ("since x 1.3", 'since "x" 1.2'):
        findings.write_since(tmp_path, words)
    made = msgspec.convert(tomllib.loads(file.read_text()), findings.About)
    assert made == findings.About("A title", "new", "somewhere", since='since "x" 1.2', links=("a",))


def test_a_release_on_which_no_rank_starts_is_passed_over(tmp_path, monkeypatch, capsys, page):
    """Breaks when one old release ends a bisect, or releases are tried that are newer than where it was seen."""
    made = findings.named(["fsdp2_adafactor_raises"])[0]
    releases = [
        Release(version, f"2026-0{month}-01") for month, version in enumerate(("2.11", "2.12", "2.13.0", "2.14"), 1)
    ]

    def measure(cells, plan, folder, seen):
        release = plan.stack
        if release == "2.12":
            raise NeverReady("No module named 'setuptools'")
        seen(judged(cells[0], raises("") if release == "2.13.0" else RIGHT))

    monkeypatch.setattr(storage.new_run, "__defaults__", (tmp_path,))
    monkeypatch.setattr(since.index, "releases", lambda package: releases)
    monkeypatch.setattr(since.environments, "ready", lambda requirements: requirements[0].removeprefix("torch=="))
    monkeypatch.setattr(since.requests, "parse", lambda text: [text])
    monkeypatch.setattr(since.folders, "measure", measure)
    written = []
    monkeypatch.setattr(findings, "write_since", lambda folder, words: written.append((folder.name, words)))
    since.run((made.name,), "torch")
    out = capsys.readouterr().out
    assert "torch==2.12: this stack can't run the suite: No module named 'setuptools'" in out
    assert "introduced by torch 2.13.0" in out and "2.14" not in out
    assert written == [(made.name, "since torch 2.13.0")]


@pytest.mark.parametrize(("names", "package"), [((), "torch"), (("a", "b"), "torch"), (("a",), "deepsped")])
def test_a_bisect_is_about_one_finding_and_a_package_of_the_stack(names, package):
    with pytest.raises(UsageError):
        since.run(names, package)
