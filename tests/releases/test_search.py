"""Searches: the right boundary with few looks, no lie where something can't be looked at, the smallest set."""

from math import ceil, log2

from hypothesis import given
from hypothesis import strategies as st

from faultline.releases import search

ROWS = st.lists(st.sampled_from([True, False, None]), min_size=1, max_size=60)


def looked(row):
    """The boundary of a row, and the places that were looked at, in their order."""
    places = []

    def look(place):
        places.append(place)
        return row[place]

    return search.boundary(len(row), look), places


@given(st.integers(1, 200).flatmap(lambda count: st.tuples(st.just(count), st.integers(0, count))))
def test_every_boundary_is_found_with_few_looks(case):
    """Breaks when a pair of releases is wrong, or a bisect makes more environments than it must."""
    count, old = case
    results, places = looked([False] * old + [True] * (count - old))
    looks = 1 + ceil(log2(count))  # seven for forty releases
    assert len(places) == len(set(places)) <= looks, "more looks than a binary search needs"
    assert not results.between and not results.skipped
    assert results.before == (old - 1 if old else None)
    assert results.after == (old if old < count else None)


@given(st.integers(0, 60), st.integers(0, 60), st.sets(st.integers(0, 120)))
def test_what_cant_be_looked_at_never_moves_the_boundary(old, new, hidden):
    """Breaks when a release that can't be installed is blamed, or cleared."""
    row = [False] * old + [True] * new
    masked = [None if place in hidden else value for place, value in enumerate(row)]
    results, places = looked(masked)
    assert len(places) == len(set(places))
    assert results.before is None or results.before < old, "a place of the new side was taken for one of the old"
    assert results.after is None or results.after >= old, "a place of the old side was taken for one of the new"
    assert all(masked[place] is None and place in results.skipped for place in results.between), "not all was tried"
    assert results.both == (True in masked and False in masked)


@given(ROWS)
def test_a_pair_always_differs_even_where_the_row_changes_more_than_once(row):
    """Breaks when a pair is named whose two sides do the same."""
    results, places = looked(row)
    assert set(results.skipped) == {place for place in places if row[place] is None}
    if results.both:
        assert row[results.before] is False and row[results.after] is True and results.before < results.after
    assert all(row[place] is None for place in results.between)
    answer = [value for value in row if value is not None]
    if not answer:
        assert results.before is results.after is None
    elif not answer[-1]:
        assert results.after is None and row[results.before] is False, "the newest is not of the new side"
    elif results.before is None:
        assert row[results.after] is True


def test_a_row_of_skips_is_left_in_strides():
    """Breaks when a whole year that can't be installed is tried release by release."""
    _, places = looked([False] * 10 + [None] * 60 + [False] * 10 + [True] * 20)
    assert len(places) < 20
    results, _ = looked([False] * 20 + [None] * 60 + [True] * 20)
    assert (results.before, results.after, len(results.between)) == (19, 80, 60)


NAMES = [f"package{number}" for number in range(12)]
SETS = st.sets(st.sampled_from(NAMES), min_size=1)


@given(SETS, st.sets(st.integers(1, 12)))
def test_the_smallest_set_of_a_cause_is_that_cause(cause, first):
    """Breaks when an innocent package is blamed, or half of a pair that acts together is."""
    results = search.smallest(NAMES, lambda items: cause <= set(items), sorted(first))
    assert set(results.items) == cause and results.minimal


@given(st.sampled_from(NAMES))
def test_one_cause_takes_few_tries(cause):
    """Breaks when every changed package is tried by itself, each in an environment."""
    asked = []
    search.smallest(NAMES, lambda items: asked.append(items) or cause in items)
    assert len(asked) <= 1 + ceil(log2(len(NAMES)))


ANSWERS = st.dictionaries(st.frozensets(st.sampled_from(NAMES[:5])), st.sampled_from([True, False, None]))


@given(ANSWERS, st.sampled_from([True, False, None]), st.integers(0, 20))
def test_a_set_that_is_named_was_seen_to_be_enough(answers, otherwise, limit):
    """Breaks when a set is blamed that nobody tried, or one after the last try."""
    asked = {}

    def holds(items):
        assert items not in asked, "the same set was tried twice"
        asked[items] = answers.get(frozenset(items), otherwise) if len(asked) < limit else None
        return asked[items]

    results = search.smallest(NAMES[:5], holds, [1, 4])
    assert results.items == tuple(NAMES[:5]) or asked[results.items] is True
    assert not (results.minimal and None in asked.values()), "a set that can't be tried leaves a doubt"
