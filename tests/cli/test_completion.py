"""What a shell offers for a half-typed word: the script is run, and what it would show is read."""

import os
import shlex
import shutil
import subprocess
import sys

import pytest

from faultline import strategies
from faultline.base.axes import CHECKPOINTING
from faultline.base.paths import ROOT
from faultline.catalogue.loading import failures
from faultline.cli import app
from faultline.stacks import requests

OFFER = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$(( ${{#COMP_WORDS[@]}} - 1 )); COMPREPLY=()
_faultline
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def offered(asked, tmp_path):
    """Ask bash; gives what it would show behind these words, the last of which is half-typed."""
    code, script, errors = asked("completion", "bash")
    assert code == 0 and not errors
    (tmp_path / "script").write_text(script)
    program = tmp_path / "faultline"
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -P {ROOT}/faultline/__main__.py "$@"\n')
    program.chmod(0o755)

    def offer(*words):
        text = OFFER.format(script=tmp_path / "script", words=shlex.join((str(program), *words)))
        done = subprocess.run(["bash", "-c", text], capture_output=True, text=True, cwd=tmp_path, check=False)
        assert not done.stderr
        return done.stdout.split()

    return offer


def test_commands_and_options_are_offered_and_files_are_left_to_the_shell(asked, offered):
    """Breaks when a folder is completed with a blank behind it, or a log is not completed at all."""
    assert offered("diagnose", "scr") == []
    assert "complete -o default -F _faultline faultline" in asked("completion", "bash")[1].splitlines()[-1]
    assert offered("dia") == ["diagnose"]
    assert {name for name in app.commands() if " " not in name} < {*offered("")}
    assert offered("maintain", "cle") == ["clean"]
    assert offered("run", "--check") == ["--checkpointing"]
    assert offered("completion", "") == ["bash", "zsh", "fish"]


def test_values_are_those_of_the_catalogue(asked):
    """Breaks when a failure, a strategy or a stack is added and no shell offers it; or when zsh and fish, which show
    descriptions, show a record or a path behind a name."""
    wanted = {
        ("run", "--failure", ""): [*failures()],
        ("run", "--strategy", ""): strategies.names(),
        ("check", "train.py:build", "--checkpointing", ""): [*CHECKPOINTING],
        ("run", "--stack", ""): [*requests.named()],
        ("is-safe", "trl==1.12.0", "--base", ""): [*requests.named()],
        ("list", "--device", "c"): ["cpu", "cuda"],
    }
    lines = {words: asked("__complete", *words)[1].splitlines() for words in wanted}
    names = {
        words: [line.partition("\t")[0] for line in said if line.strip("\x1fbegin")] for words, said in lines.items()
    }
    assert names == wanted
    shown = asked("__complete", "show", "")[1].splitlines()
    assert {"no-grad-fn\tSignatures", f"zero3_dummy_loss\t{failures()['zero3_dummy_loss'].title}"} <= {*shown}
    assert "trl-0.15.2" in asked("__complete", "run", "--stack", "trl")[1].splitlines()


@pytest.mark.slow
def test_bash_offers_the_rest_of_what_it_takes_for_several_words(offered):
    """Breaks when a list, a value behind = or an id is completed at its beginning, or not at all."""
    assert offered("run", "--strategy", "ddp,fsdp2") == ["ddp,fsdp2", "ddp,fsdp2-no-reshard", "ddp,fsdp2-hsdp"]
    assert offered("run", "--strategy", "=", "fsdp2") == ["fsdp2", "fsdp2-no-reshard", "fsdp2-hsdp"]
    cell = "rank0_only_save/broken/ddp/off/fp32/w2"
    assert offered("export", cell) == [f"{cell}/cpu"]


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_script_is_one_of_its_shell(asked, tmp_path, shell):
    program = shutil.which(shell)
    if not program:
        pytest.skip(f"there is no {shell} here")
    (tmp_path / "script").write_text(asked("completion", shell)[1])
    subprocess.run([program, "-n", str(tmp_path / "script")], env=dict(os.environ), check=True)
