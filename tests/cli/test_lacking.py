"""What isn't installed: the answer names it, and what can be done about it in the place where it is asked."""

from importlib import metadata
from unittest.mock import Mock

import pytest

from faultline.base.errors import NotInstalled
from faultline.base.packages import TO_START
from faultline.cli import lacking, measure, use
from faultline.stacks import environments

REQUIRES = ["rich>=15", 'pypi-simple>=1.8; extra == "run"', 'ruff>=0.17; extra == "run"', 'uv>=0.13; extra == "run"']


@pytest.fixture
def light(monkeypatch):
    """As in the base install, where nothing of the extra is."""
    version = metadata.version

    def of(name):
        if name in ("pypi-simple", "ruff", "uv"):
            raise metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(metadata, "requires", lambda _: REQUIRES)
    monkeypatch.setattr(metadata, "version", of)
    return monkeypatch


@pytest.mark.parametrize("module", ["ruff", "uv", "requests", "pypi_simple", "faultline.nowhere"])
def test_whatever_is_missing_of_the_extra_is_named_with_its_pins(light, asked, module):
    """Breaks when a lack of the extra ends in a traceback, the advice installs another project of this name, or a
    module that nobody can install is called a lack."""
    lacks = ModuleNotFoundError(f"No module named {module!r}", name=module)
    light.setattr("faultline.matrix.command.show", Mock(side_effect=lacks))
    if module == "faultline.nowhere":
        with pytest.raises(ModuleNotFoundError):
            asked("show", "zero3_dummy_loss")
        return
    code, out, errors = asked("show", "zero3_dummy_loss")
    pins = 'pip install "pypi-simple>=1.8" "ruff>=0.17" "uv>=0.13"'
    assert (code, out) == (2, "")
    assert errors == [f"faultline: this command needs pypi-simple, ruff and uv: {pins}"]


@pytest.mark.parametrize(
    ("command", "ways"),
    [(measure.run, ["--python", "--stack"]), (use.is_safe, ["--python", "--base"]), (use.timeline, [])],
)
def test_only_options_that_a_command_has_are_offered(command, ways):
    """Breaks when somebody who has no --stack is told to give it."""
    text = lacking.stack("torch", command)
    assert [word for word in ("--python", "--stack", "--base") if word in text] == ways
    assert text.startswith("not installed here: torch; install that beside Faultline")


def test_what_a_stack_of_its_own_needs_is_said_at_once(light):
    """Breaks when somebody does what a message says, and the next one says that more has to be installed."""
    assert lacking.stack("torch", measure.run).endswith(
        "or let --stack make one (then this command needs pypi-simple, ruff and uv: "
        'pip install "pypi-simple>=1.8" "ruff>=0.17" "uv>=0.13")'
    )
    assert "pip install" not in lacking.stack("torch", use.timeline)


def test_a_model_of_texts_needs_no_library_for_images(monkeypatch):
    """Breaks when a check is refused for want of what none of its cells uses."""
    there = tuple(f"{name}==1" for name in TO_START)
    monkeypatch.setattr(environments, "installed", lambda: there)
    assert "pillow" not in TO_START and environments.chosen("today", "").lock
    monkeypatch.setattr(environments, "installed", lambda: there[1:])
    with pytest.raises(NotInstalled, match=f"not installed here: {TO_START[0]};"):
        environments.chosen("today", "")
