"""A plugin, `-p tests.support.no_skips`: what a test needs should be here, so one that is skipped has failed."""

import os

import pytest

os.environ.pop("PYTEST_ADDOPTS", None)  # which named this plugin: in the sessions that tests start, a skip is one


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped: {call.excinfo.value}"
    return report
