"""Ranks' reports as tests make them up."""

import msgspec

from faultline.ranks.report import ErrorReport, Report
from faultline.runs.nodes import RankEnd


def report(**values):
    """A report of these values, as it is read from a rank's JSON."""
    return msgspec.convert(values, Report)


def end(**values):
    """The end of a rank that reported."""
    return RankEnd(report(**values))


def error(type="Torn", message="apart", **values):
    return ErrorReport(type, message, f"Traceback (most recent call last):\n{type}: {message}\n", **values)
