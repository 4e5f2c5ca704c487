"""What several tests of the command line need."""

import hypothesis
import pytest

from faultline import cli

# A deadline is an assertion about time, which says nothing on a machine that is busy.
hypothesis.settings.register_profile("timeless", deadline=None)
hypothesis.settings.load_profile("timeless")


@pytest.fixture
def asked(capsys):
    """Ask for something; gives the exit code, the output and the lines of the errors."""

    def ask(*argv):
        try:
            code = cli.main(argv)
        except SystemExit as leaving:
            code = leaving.code
        told = capsys.readouterr()
        return code, told.out, told.err.splitlines()

    return ask
