"""The places that `base/traces.py` names exist: a renamed module would turn a user's error into a fault of ours."""

import pytest

from faultline.base import traces
from faultline.base.paths import PACKAGE


@pytest.mark.parametrize("place", [*traces.RUN, *traces.TAKE])
def test_a_place_that_is_not_ours_to_answer_for_exists(place):
    there = PACKAGE / place
    assert there.is_dir() if place.endswith("/") else there.with_suffix(".py").exists()
