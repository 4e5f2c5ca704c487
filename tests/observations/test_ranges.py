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


@given(SETS, SETS, NUMBERS, NUMBERS)
def test_law_a_range_both_and_what_is_below_a_version_hold_what_specifiers_hold(one, other, first, version):
    """Breaks when a requirement, or two files together, leave a release that pip wouldn't install, or not one that it
    would; or when a project is told that it has a fix, or lacks it, that its range leaves open."""
    asked, known = ranges.parse(one), Version(version)
    assert asked.holds(known) == SpecifierSet(one).contains(version)
    shared = ranges.intersect(asked, ranges.parse(other))
    each = [asked.holds(known), ranges.parse(other).holds(known)]
    assert shared.holds(known) == all(each)
    assert not (shared.empty and all(each)), "a range that holds a version is called empty"
    if (asked.below if known >= Version(first) else asked.reaches)(Version(first)):
        assert not asked.holds(known)


@pytest.mark.parametrize("text", ["latest", "==", "^1.2", "=1.0", "1.0", ">=x"])
def test_what_is_no_range_is_refused(text):
    with pytest.raises(ValueError, match="is not a range"):
        ranges.parse(text)


def test_pre_releases_and_builds_are_of_their_release():
    """Breaks when trl==0.16.* reaches below 0.16.0, trl<0.16 up to its pre-releases, or 2.13.0+cpu isn't 2.13.0."""
    assert ranges.exactly("2.13.0+cpu") == ranges.exactly("2.13.0") and ranges.exactly("1.0").pinned
    assert ranges.parse("==0.16.*").reaches(Version("0.16.0"))
    assert ranges.parse("<0.16").below(Version("0.16.0.dev0"))
