"""Ranges of versions: what requirements leave, held against packaging's own answer for every version."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from faultline.observations import ranges

NUMBERS = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
LONG = st.lists(st.integers(0, 3), min_size=2, max_size=3).map(lambda parts: ".".join(map(str, parts)))
SPECIFIERS = st.one_of(
    st.builds("{}{}".format, st.sampled_from(["==", ">=", ">", "<=", "<"]), NUMBERS),
    st.builds("~={}".format, LONG),
    st.builds("=={}.*".format, NUMBERS),
)
SETS = st.lists(SPECIFIERS, max_size=3).map(",".join)


@given(SETS, NUMBERS)
def test_a_range_holds_what_its_specifier_holds(text, version):
    """Breaks when a requirement is taken to leave a release that pip wouldn't install, or the other way round."""
    assert ranges.parse(text).holds(Version(version)) == SpecifierSet(text).contains(version)


@given(SETS, SETS, NUMBERS)
def test_both_is_what_each_holds(one, other, version):
    """Breaks when a lock file and a requirements file together leave more or less than both do."""
    shared = ranges.both(ranges.parse(one), ranges.parse(other))
    each = [ranges.parse(text).holds(Version(version)) for text in (one, other)]
    assert shared.holds(Version(version)) == all(each)
    assert not (shared.empty and all(each)), "a range that holds a version is called empty"


@given(SETS, NUMBERS, NUMBERS)
def test_a_range_below_a_version_holds_none_from_there_on(text, first, version):
    """Breaks when a project is told that it has a fix, or lacks it, that its range leaves open."""
    asked = ranges.parse(text)
    if asked.below(Version(first)) and Version(version) >= Version(first):
        assert not asked.holds(Version(version))
    if asked.reaches(Version(first)) and Version(version) < Version(first):
        assert not asked.holds(Version(version))


@pytest.mark.parametrize("text", ["latest", "==", "^1.2", "=1.0", "1.0", ">=x"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ValueError, match="is not a range"):
        ranges.parse(text)


def test_pre_releases_and_builds_are_of_their_release():
    """Breaks when trl==0.16.* reaches below 0.16.0, trl<0.16 up to its pre-releases, or 2.13.0+cpu isn't 2.13.0."""
    assert ranges.exactly("2.13.0+cpu") == ranges.exactly("2.13.0") and ranges.exactly("1.0").pinned
    assert ranges.parse("==0.16.*").reaches(Version("0.16.0"))
    assert ranges.parse("<0.16").below(Version("0.16.0.dev0"))
