"""Bisect: the right pair with few environments, honest where it can't tell, and nothing measured twice."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import NeverReady
from faultline.catalogue.outcomes import Outcome
from faultline.releases import bisect, bisection
from faultline.runs import cache, measurement, storage
from faultline.runs.cache import Cache
from faultline.runs.oracle import Judgement
from faultline.stacks import environments, index, requests
from faultline.stacks.environments import Environment, Uninstallable
from faultline.stacks.index import Release
from tests.support import entries

CELL = "fsdp_reference_model/grpo-broken/fsdp2/off/fp32/w2/cpu"
RELEASES = [Release(f"0.{16 + number}.0", f"2025-{4 + number // 28:02}-{1 + number % 28:02}") for number in range(40)]
INSTALLED = ("torch==2.13.0+cpu", "transformers==5.23.0", "trl==1.16.0")
FAILS, TRAINS = Judgement(Outcome.MISPLACED, "reference-model", "rank 0 holds it all"), Judgement(Outcome.TRAINS)
ANOTHER = Judgement(Outcome.RAISES, "other", "TypeError: something else")


class World:
    """A world of releases in which ranks' and uv's part is played: what a stack does is a function of its versions."""

    def __init__(self):
        self.does = lambda versions, time: TRAINS if minor(versions) >= 30 else FAILS
        self.others = lambda release: {"transformers": "5.0.0"}  # what a dated stack has beside it
        self.unresolvable = set()
        self.made, self.ran = [], []

    def ready(self, stack):
        pins = dict(text.split("==") for text in stack.requirements if "==" in text)
        if pins["trl"] in self.unresolvable:
            raise Uninstallable("no wheel")
        versions = {**self.others(pins["trl"]), **pins}
        return self.make("".join(f"{name}=={version}\n" for name, version in sorted(versions.items())))

    def make(self, lock):
        self.made += [lock] if lock not in self.made else []
        return Environment("python", lock)

    def measure(self, batches, workers, engine, on_result):
        [batch] = batches
        folder = batch.folder
        lock = folder.info().lock
        self.ran.append(lock)
        judged = self.does(environments.pins(lock), self.ran.count(lock))
        if isinstance(judged, Exception):
            raise judged
        entries.played(folder, batch.cells, judged, batch.keep.add)


@pytest.fixture
def world(tmp_path, monkeypatch):
    made = World()
    monkeypatch.setattr(environments, "ready", made.ready)
    monkeypatch.setattr(environments, "make", made.make)
    monkeypatch.setattr(measurement, "measure", made.measure)
    monkeypatch.setattr(cache, "of", lambda environment, device, again=0, here=True: Cache(environment.lock, again))
    monkeypatch.setattr(requests, "installed", lambda without=(): INSTALLED)
    monkeypatch.setattr(index, "releases", lambda package: RELEASES)
    for function in (storage.new_run, storage.latest_run, storage.runs):
        monkeypatch.setattr(function, "__defaults__", (tmp_path,))
    return made


@pytest.fixture
def bisected(asked, tmp_path):
    """Bisect; gives the exit code, what was said, and bisect.json."""

    def ask(*argv):
        code, out, errors = asked("bisect", "--package", "trl", "--cell", CELL, *argv)
        files = sorted(tmp_path.glob("bisect-*/bisect.json"))
        return code, out, json.loads(files[-1].read_text()) if files else errors

    return ask


def minor(versions):
    return int(versions["trl"].split(".")[1])


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(("others", "first"), [("dated", 17), ("fixed", 30), ("dated", 37), ("fixed", 55)])
@pytest.mark.parametrize("direction", ["--fixed", "--introduced"])
def test_the_first_release_is_found(world, bisected, direction, first, others, told):
    """Breaks when the wrong release is named, takes more environments than promised, or needs a direction."""
    sides = (FAILS, TRAINS) if direction == "--fixed" else (TRAINS, FAILS)
    world.does = lambda versions, time: sides[minor(versions) >= first]
    code, out, answer = bisected(*[direction] * told, "--others", others)
    assert (code, answer["before"]["version"], answer["after"]["version"]) == (0, f"0.{first - 1}.0", f"0.{first}.0")
    assert answer["direction"] == direction.removeprefix("--")
    assert len(world.made) == answer["environments"] <= 7, "a bisect over 40 releases needs at most 7 environments"
    assert "confidence: 3 of 3 runs on both sides" in out and RELEASES[first - 16].date in out
    assert answer["between"] == answer["skipped"] == []


@pytest.mark.parametrize(
    ("judged", "direction", "expected"),
    [
        (TRAINS, "--fixed", "no change: trl 0.16.0 (2025-04-01), the oldest in the range, doesn't show it"),
        (FAILS, "--introduced", "no change: trl 0.16.0 (2025-04-01), the oldest in the range, shows the failure"),
        (FAILS, "--fixed", "no change: trl 0.55.0 (2025-05-12), the newest in the range, shows the failure"),
        (TRAINS, "--introduced", "the newest in the range, doesn't show it; name one that does with --to"),
    ],
)
def test_no_change_is_said_to_be_none(world, bisected, judged, direction, expected):
    """Breaks when an end of the range is named as the release that changed something."""
    world.does = lambda versions, time: judged
    code, out, answer = bisected(direction)
    assert code == 1 and expected in out and not (answer["before"] and answer["after"])


def test_what_cant_tell_is_skipped_with_its_reason(world, bisected):
    """Breaks when a release that can't be installed, or fails in another way, is blamed or cleared, also if all do."""
    world.unresolvable = {"0.30.0"}
    odd = {31: ANOTHER, 32: Judgement(Outcome.IMPOSSIBLE, "", "this stack lacks it"), 33: NeverReady("no server")}
    world.does = lambda versions, time: odd.get(minor(versions), TRAINS if minor(versions) > 31 else FAILS)
    code, out, answer = bisected("--fixed")
    assert code == 3, "a range of releases is no pair"
    assert "fixed after trl 0.29.0" in out and "no later than 0.34.0" in out and "4 releases between them" in out
    reasons = {each["version"]: each["why"] for each in answer["skipped"]}
    assert reasons == {
        "0.30.0": "no wheel",
        "0.31.0": "raises (other): TypeError: something else",
        "0.32.0": "impossible: this stack lacks it",
        "0.33.0": "no server",
    }
    world.unresolvable = {release.version for release in RELEASES[:-1]}
    assert bisected("--fixed", "--fresh")[0] == 3
    world.unresolvable = {release.version for release in RELEASES}
    code, out, _ = bisected("--fixed", "--fresh")
    assert code == 3 and "undecided: no release of trl in the range gives an answer" in out


@pytest.mark.slow
def test_a_flake_at_the_boundary_is_overruled(world, bisected):
    """Breaks when one run that went wrong moves the answer by a release, or by twenty."""
    true = world.does
    for liar in (25, 29, 30, 35, 45):
        lies = {TRAINS: FAILS, FAILS: TRAINS}
        world.ran.clear()
        world.does = lambda versions, time, liar=liar, lies=lies: (
            lies[true(versions, time)] if minor(versions) == liar and time == 1 else true(versions, time)
        )
        code, out, answer = bisected("--fixed")
        assert (code, answer["before"]["version"], answer["after"]["version"]) == (0, "0.29.0", "0.30.0"), f"0.{liar}.0"
        told_all = "of 3 runs on both sides" in out
        assert told_all or f"4 of 5 runs on 0.{liar}.0" in out, "the run that went wrong is kept from the reader"


@pytest.mark.slow
def test_other_errors_count_only_if_they_are_named(world, bisected):
    """Breaks when any error is taken for the failure, or --bad can't name one that the catalogue doesn't know."""
    world.does = lambda versions, time: TRAINS if minor(versions) >= 30 else ANOTHER
    assert bisected("--fixed")[0] == 3, "another error is neither the failure nor its absence"
    for words in ("raises:other", "raises", "diverges, raises:other"):
        code, _, answer = bisected("--fixed", "--bad", words)
        assert (code, answer["after"]["version"]) == (0, "0.30.0")
    assert bisected("--fixed", "--bad", "raises:no-grad-fn")[0] == 3


@pytest.mark.slow
def test_what_an_interruption_left_is_not_measured_again(world, bisected, asked, monkeypatch):
    """Breaks when a bisect that was stopped after an hour begins from nothing, or with other releases."""
    with pytest.MonkeyPatch.context() as patch:
        stopped = world.measure

        def stops(*args, **more):
            if len(world.ran) == 4:
                raise KeyboardInterrupt
            stopped(*args, **more)

        patch.setattr(measurement, "measure", stops)
        assert bisected("--fixed")[0] == 130
    before = list(world.ran)
    monkeypatch.setattr(index, "releases", lambda package: pytest.fail("asked the index again"))
    code, _, answer = bisected("--fixed", "--resume")
    assert (code, answer["after"]["version"]) == (0, "0.30.0")
    assert len({*world.ran}) == answer["environments"] <= 7
    assert all(world.ran.count(lock) <= 3 for lock in before), "a release was measured again"
    known = len(world.ran)
    assert bisected("--fixed", "--resume")[0] == 0 and len(world.ran) == known, "a finished bisect ran again"
    code, _, errors = asked("bisect", "--package", "trl", "--cell", CELL, "--introduced", "--resume")
    assert code == 2 and "can be resumed" in errors[0]
    monkeypatch.setattr(index, "releases", lambda package: RELEASES)
    assert bisected("--fixed")[2] == answer and len(world.ran) == known, "what another bisect measured runs again"
    assert bisected("--fixed", "--fresh")[2] == answer and len(world.ran) > known


def test_of_several_packages_the_ones_that_matter_are_named(world, bisected):
    """Breaks when the bisected package is blamed for what another one does that was released beside it."""
    names = ("transformers", "numpy", "huggingface-hub", "anyio")
    world.others = lambda release: dict.fromkeys(names, "5.1.0" if int(release.split(".")[1]) >= 30 else "5.0.0")
    world.does = lambda versions, time: TRAINS if versions["transformers"] == versions["numpy"] == "5.1.0" else FAILS
    code, out, answer = bisected("--fixed")
    assert code == 0 and answer["blame"] is None and "transformers 5.0.0 -> 5.1.0" in out and "--blame" in out
    code, out, answer = bisected("--fixed", "--resume", "--blame")
    assert code == 0 and set(answer["blame"]["packages"]) == {"transformers", "numpy"}, out
    assert answer["blame"]["minimal"] and len(answer["blame"]["trials"]) <= bisection.TRIALS
    assert "is enough" in out


def test_mixtures_that_cant_be_installed_leave_a_doubt(world, bisected, monkeypatch):
    """Breaks when all are blamed because none could be tried alone, or the likeliest culprit isn't tried first."""
    world.others = lambda release: {"transformers": f"5.{release.split('.')[1]}.0"}
    alone = bisected("--fixed", "--blame")[2]["blame"]
    assert alone["packages"] == ["trl"] and alone["minimal"] and len(alone["trials"]) == 1

    def ready(stack):
        if stack.name.startswith("trial"):
            raise Uninstallable("trl needs another transformers")
        return World.ready(world, stack)

    monkeypatch.setattr(environments, "ready", ready)
    _, out, answer = bisected("--fixed", "--blame", "--fresh")
    assert answer["blame"]["packages"] == ["trl", "transformers"] and not answer["blame"]["minimal"]
    assert "not every one could be tried" in out


def test_the_command_of_a_side_repeats_it(world, bisected):
    """Breaks when the command that is printed runs another cell or names another stack."""
    world.others = lambda release: {"transformers": "4.50.0", "torch": "2.13.0+cpu", "numpy": "2.0"}
    for others, stack in (("fixed", "trl==0.30.0"), ("dated", "trl==0.30.0 transformers==4.50.0")):
        _, out, answer = bisected("--fixed", "--others", others)
        words = shlex.split(answer["after"]["repeat"])
        assert words == ["faultline", "run", "--cell", CELL, "--stack", stack] and answer["after"]["repeat"] in out
        assert requests.parse(words[-1]).requirements[0] == "trl==0.30.0"


def test_the_rest_of_a_dated_stack_is_as_of_the_next_day():
    """Breaks when a release is resolved on a day on which the index doesn't have it yet, or a month later."""
    question = bisect.Question(None, [], "trl", False, True, [])
    stack = question.stack(Release("0.16.0", "2025-03-31"))
    assert (stack.asof, stack.requirements[0], stack.base) == ("2025-04-01", "trl==0.16.0", ())
    assert {"torch", "transformers"} <= {*stack.requirements} and "trl" not in stack.requirements
    assert question.stack(Release("0.15.2", "2025-02-25")).asof == requests.EARLIEST.isoformat()


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["--package", "trll"], "unknown package 'trll'; did you mean trl"),
        (["--from", "0.161"], "unknown release of trl '0.161'; did you mean 0.16.0"),
        (["--to", "newest"], "unknown release of trl 'newest': one of 0.55.0, 0.54.0"),
        (["--from", "0.30", "--to", "0.20"], "--from 0.30.0 is later than --to 0.20.0"),
        (["--from", "0.30", "--to", "0.30.0"], "a single release"),
        (["--bad", "trains"], "unknown outcome 'trains'"),
        (["--bad", "rises:other"], "did you mean raises"),
        (["--introduced", "--fixed"], "exclude each other"),
        (["--resume"], "no bisect run with these options"),
        (["--cell", ""], "bisect needs a failure"),
        (["--cell", "", "--failure", "grpo_lora_no_grad", "--strategy", "*"], "that is 29 cells, and a bisect"),
        (["--cell", f"{CELL},zero3_dummy_loss/broken/ddp/off/fp32/w2/cpu"], "a bisect is about one failure"),
    ],
)
def test_a_mistake_is_one_line(world, asked, tmp_path, argv, expected):
    """Breaks when somebody's typo is found out after ten minutes, in a traceback, or leaves a folder."""
    code, out, errors = asked("bisect", "--package", "trl", "--cell", CELL, *argv)
    assert code == 2 and not out and len(errors) == 1 and expected in errors[0], errors
    assert not list(tmp_path.glob("bisect-*"))


@pytest.mark.parametrize(
    ("options", "cell"),
    [
        ([], "grpo-broken/zero2/reentrant/fp32/w2/cpu"),
        (["--variant", "broken", "--checkpointing", "off"], "broken/zero2/off/fp32/w2/cpu"),
        (["--strategy", "single", "--precision", "bf16"], "grpo-broken/single/reentrant/bf16/w1/cpu"),
        (["--world", "4"], "grpo-broken/zero2/reentrant/fp32/w4/cpu"),
    ],
)
def test_a_failure_is_looked_at_as_it_was_reported(world, asked, tmp_path, options, cell):
    """Breaks when a bisect without a cell runs sixty of them, or another precision or world size."""
    assert asked("bisect", "--package", "trl", "--fixed", "--failure", "grpo_lora_no_grad", *options)[0] == 0
    [file] = tmp_path.glob("bisect-*/bisect.json")
    assert json.loads(file.read_text())["cells"] == [f"grpo_lora_no_grad/{cell}"]


def test_an_error_from_a_log_reaches_no_terminal_as_it_is(world, bisected):
    """Breaks when what a rank printed moves the cursor or sets the title."""
    evil = Judgement(Outcome.MISPLACED, "reference-model", "\x1b]0;title\x07a\nb" + "c" * 9999)
    world.does = lambda versions, time: TRAINS if minor(versions) >= 30 else evil
    _, out, _ = bisected("--fixed")
    assert "\x1b" not in out and "a b" in out and len(out) < 3000


def test_the_range_begins_with_the_newest_release_of_the_first_stack():
    """Breaks when releases are tried that the suite was never made for, or the one it was made for is left out."""
    matches = [Release("0.14.0", "2025-01-01"), Release("0.15.2", "2025-02-25"), Release("0.16.0", "2025-03-22")]
    assert [each.version for each in bisect.within("trl", matches, "", "")] == ["0.15.2", "0.16.0"]
    assert len(bisect.within("trl", matches, "0.14", "")) == 3
    assert len(bisect.within("x", [Release("1"), Release("2")], "", "")) == 2


# The searches: few looks, no lie where something can't be looked at, the smallest set.


def in_order(row):
    """The row as it is if it changes once; what can't be looked at stays where it is."""
    values = iter(sorted(value for value in row if value is not None))
    return [value if value is None else next(values) for value in row]


ROWS = st.lists(st.sampled_from([True, False, None]), max_size=60)
ROWS |= ROWS.map(in_order)


def looked(row):
    """The boundary of a row, and the places that were looked at, in their order."""
    places = []

    def look(place):
        places.append(place)
        return row[place]

    return bisection.boundary(len(row), look), places


@given(ROWS)
def test_a_pair_always_differs_even_where_the_row_changes_more_than_once(row):
    """Breaks when a pair's sides do the same, or a release that can't be installed is blamed or cleared."""
    results, places = looked(row)
    assert len(places) == len(set(places))
    assert set(results.skipped) == {place for place in places if row[place] is None}
    if results.complete:
        assert row[results.before] is False and row[results.after] is True and results.before < results.after
    assert all(row[place] is None and place in results.skipped for place in results.between), "not all was tried"
    answer = [value for value in row if value is not None]
    if not answer:
        assert results.before is results.after is None
    elif not answer[-1]:
        assert results.after is None and row[results.before] is False, "the newest is not of the new side"
    elif results.before is None:
        assert row[results.after] is True
    assert answer != sorted(answer) or results.complete == (len({*answer}) == 2), "a row that changes once has a pair"


def test_a_row_of_skips_is_left_in_strides():
    """Breaks when a whole year that can't be installed is tried release by release."""
    _, places = looked([False] * 10 + [None] * 60 + [False] * 10 + [True] * 20)
    assert len(places) < 20
    results, _ = looked([False] * 20 + [None] * 60 + [True] * 20)
    assert (results.before, results.after, len(results.between)) == (19, 80, 60)


NAMES = [f"package{number}" for number in range(12)]
ANSWERS = st.dictionaries(st.frozensets(st.sampled_from(NAMES[:5])), st.sampled_from([True, False, None]))


@given(ANSWERS, st.sampled_from([True, False, None]), st.integers(0, 20))
def test_a_set_that_is_named_was_seen_to_be_enough(answers, otherwise, limit):
    """Breaks when a set is blamed that nobody tried, or one after the last try."""
    asked = {}

    def holds(items):
        assert items not in asked, "the same set was tried twice"
        asked[items] = answers.get(frozenset(items), otherwise) if len(asked) < limit else None
        return asked[items]

    results = bisection.smallest(NAMES[:5], holds, [1, 4])
    assert results.items == tuple(NAMES[:5]) or asked[results.items] is True
    assert not (results.minimal and None in asked.values()), "a set that can't be tried leaves a doubt"
