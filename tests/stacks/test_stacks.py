"""Stacks: what a name, a date or requirements mean, and environments of which no half is ever used."""

import contextlib
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from faultline.base import packages, paths
from faultline.base.errors import DIED, UsageError
from faultline.catalogue.outcomes import Outcome
from faultline.cli import app
from faultline.runs import runner
from faultline.stacks import environments, pip, requests
from faultline.stacks.environments import Uninstallable
from tests.support import reports
from tests.support.waiting import wait_until

LOCK = "torch==2.13.0+cpu\ntransformers==4.49.0\ntrl==0.15.2\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of this test's own, in which uv's part is played by a function that counts its calls."""
    monkeypatch.setattr(environments, "cache", lambda: tmp_path / "stacks")
    calls = []

    def run_uv(words, held=()):
        calls.append(words)
        if words[0] == "venv":
            (Path(words[-1]) / "bin").mkdir(parents=True)
            (Path(words[-1]) / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(environments, "run_uv", run_uv)
    return calls


def test_every_stack_of_the_folder_is_read():
    """Breaks when a file in stacks/ has a typo, or lacks a package that the suite needs."""
    for name in requests.named():
        stack = requests.parse(name)
        has = {Requirement(text).name for text in stack.requirements}
        assert stack.here or (has >= {*packages.NEEDED} and stack.asof), f"{name} would be another one every day"
        assert stack.here == (name == "today")


def test_requirements_change_what_is_installed_and_nothing_else():
    """Breaks when a candidate is resolved without the baseline's versions, or a dated stack has a trl of years ago."""
    assert requests.parse("2026-07-01").requirements[0] == "trl"
    assert requests.parse("transformers peft trl pyarrow>=20").requirements[0] == "trl", "as they were written"
    stack = requests.parse("trl==1.12.0 Transformers>=5,<6")
    assert {"requests", "setuptools"} <= {*stack.requirements}, "older releases import what they don't declare"
    assert {"trl==1.12.0", "Transformers>=5,<6"} < {*stack.requirements} and "trl" not in stack.requirements
    pins = {text.split("==")[0] for text in stack.base}
    assert {"torch", "deepspeed", "numpy"} <= pins and not {"trl", "transformers"} & pins


@pytest.mark.parametrize(
    "url", ["git+file:///src/x@main", "file:///trl-1.0.whl#sha256=3", "https://x/trl", "git+https://x/trl@y"]
)
def test_a_reference_is_a_requirement_unless_it_is_a_folder(url):
    """Breaks when an unreleased fix can't be tried, or is refused as a folder is, whose code changes under one name."""
    stack = requests.parse(f"trl@{url}")
    assert stack.requirements[0] == f"trl@{url}" and "trl" not in stack.requirements
    assert environments.pins(f"trl @ {url}\n") == {"trl": url}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "a stack is a name"),
        ("trl-0.15.3", "did you mean trl-0.15.2"),
        ("2024-01-01", "is too early"),
        ("2999-01-01", "in the future"),
        ("2025-13-01", "not a date"),
        ("trl=1.0", "not a requirement"),
        ("trl==1.0 TRL==1.1", "names a package twice"),
        ("trl@file:///src/trl", "is a folder, .* give trl@git.file:///FOLDER@COMMIT, or build a wheel"),
        ("peft==0.17 trl@./trl", "is a folder"),
    ],
)
def test_a_mistake_is_one_line(text, expected):
    """Breaks when somebody's typo is resolved for a minute, or ends in a traceback."""
    with pytest.raises(UsageError, match=expected) as caught:
        requests.parse(text)
    assert "\n" not in str(caught.value)


def test_an_environment_is_made_once(cache, monkeypatch):
    """Breaks when every run installs its stack anew, or two stacks, or two kinds of machines, share an environment."""
    first = environments.make(LOCK)
    assert environments.make(LOCK) == first and len(cache) == 2
    assert first.versions == {"torch": "2.13.0+cpu", "transformers": "4.49.0", "trl": "0.15.2"}
    assert environments.make(LOCK.replace("0.15.2", "0.16.0")).python != first.python
    monkeypatch.setattr(environments.platform, "machine", lambda: "riscv64")
    assert environments.make(LOCK).python != first.python


def test_what_is_left_of_an_environment_is_made_anew(cache):
    """Breaks when one without its mark, as a killed installation leaves it, or without its interpreter is trusted."""
    python = Path(environments.make(LOCK).python)
    folder = python.parent.parent
    (folder / environments.READY).unlink()
    (folder / "stale").touch()
    environments.make(LOCK)
    assert len(cache) == 4 and not (folder / "stale").exists()
    python.unlink()
    python.symlink_to("/gone/bin/python")
    assert environments.make(LOCK).python == str(python) and len(cache) == 6 and python.exists()


@pytest.mark.parametrize("error", [Uninstallable("no wheel"), KeyboardInterrupt()])
def test_a_failed_installation_leaves_nothing(cache, monkeypatch, error):
    """Breaks when half an environment is left to be used, or a second try finds it."""

    def fails(words):
        if words[0] == "pip":
            raise error

    counted = environments.run_uv
    monkeypatch.setattr(environments, "run_uv", lambda words, held: (counted(words), fails(words)))
    with pytest.raises(type(error)):
        environments.make(LOCK)
    assert not [path for path in environments.cache().iterdir() if path.is_dir()]


# Sees whether it is alone in the folder that it fills, and tells; the first to be here is in no hurry.
UV = """#!/bin/sh
case "$*" in
    *" venv "*) for folder; do :; done; mkdir -p "$folder/bin"; ln -s "$PLAYED/python" "$folder/bin/python";;
    *) mkdir "$PLAYED/at-work" || touch "$PLAYED/met"
       echo $$ > "$PLAYED/draft"; mv "$PLAYED/draft" "$PLAYED/pid"
       if [ ! -e "$PLAYED/killed" ]; then while [ ! -e "$PLAYED/go" ]; do sleep 0.05; done; fi
       rmdir "$PLAYED/at-work";;
esac
"""
MAKER = """
import pathlib, sys, uv
from faultline.stacks import environments, pip

environments.cache, pip.settings = lambda: pathlib.Path(sys.argv[1]) / "stacks", dict
uv.find_uv_bin = lambda: sys.argv[1] + "/uv"
print(environments.make(sys.argv[2]).python, flush=True)
"""


@contextlib.contextmanager
def makes(folder):
    """Another process that makes an environment, of which a uv is at work."""
    (folder / "uv").write_text(UV)
    (folder / "uv").chmod(0o755)
    (folder / "python").unlink(missing_ok=True)
    (folder / "python").symlink_to(sys.executable)
    command = [sys.executable, "-c", MAKER, str(folder), LOCK]
    settings = {"cwd": paths.ROOT, "env": {**os.environ, "PLAYED": str(folder)}, "text": True}
    made = subprocess.Popen(command, stdout=subprocess.PIPE, **settings)
    try:
        wait_until((folder / "pid").exists, 60)
        yield made
    finally:
        (folder / "go").touch()
        made.kill()
        made.communicate()


@pytest.mark.slow
def test_a_uv_that_outlives_a_killed_call_is_waited_for(tmp_path):
    """Breaks when the next call installs into the folder that the killed one's uv still writes to."""
    with makes(tmp_path) as first:
        orphan = int((tmp_path / "pid").read_text())
        first.kill()
        first.wait()
        os.kill(orphan, 0)
        (tmp_path / "killed").touch()
        with makes(tmp_path) as second:
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(1.5)
            (tmp_path / "go").touch()
            made, _ = second.communicate(timeout=30)
    assert not (tmp_path / "met").exists(), "two installations were at work in one folder"
    assert second.returncode == 0 and (Path(made.strip()).parent.parent / environments.READY).exists()


def test_environments_can_be_removed_that_nobody_makes_or_uses(cache, monkeypatch, capsys):
    """Breaks when clean-stacks leaves gigabytes, or takes an environment that is made or used, if only later."""
    assert environments.clean() == ([], [])
    install, meanwhile = environments.run_uv, []
    cleaning = lambda words, held: (install(words), meanwhile.append(environments.clean()))  # noqa: E731
    monkeypatch.setattr(environments, "run_uv", cleaning)
    folder = Path(environments.make(LOCK).python).parent.parent
    assert meanwhile == [([], [folder])] * 2, "it was being made"
    environments._marks.pop(folder).close()
    assert not environments.used(folder)
    environments.make(LOCK)
    (environments.cache() / "killed").mkdir()
    assert app.main(["maintain", "clean", "stacks"]) == 0
    removed = f"1 environment removed from {environments.cache()}; kept, as they are in use: {folder.name}\n"
    assert removed in capsys.readouterr().out and (folder / environments.READY).exists()
    environments._marks.pop(folder).close()
    assert environments.clean() == ([folder], []) and not list(environments.cache().iterdir())


@pytest.mark.parametrize(
    ("words", "kind", "expected"),
    [
        ("error: Failed to fetch: `https://x/simple/trl/`\n  cause: dns error", UsageError, "can't be reached"),
        ("error: failed to write\n  cause: No space left on device (os error 28)", UsageError, "disk is full"),
        ("  \x1b[31m\u00d7\x1b[0m No\n  ╰─▶ Because a\n      c.\n\nhint: x", Uninstallable, "No Because a c."),
    ],
)
def test_uv_is_quoted_in_a_line(monkeypatch, words, kind, expected):
    """Breaks when a machine without network calls a release uninstallable, or a reason fills the screen."""
    monkeypatch.setattr(pip, "settings", dict)
    ended = subprocess.CompletedProcess([], 1, stderr=words)
    monkeypatch.setattr(environments.subprocess, "run", lambda *args, **kwargs: ended)
    with pytest.raises(kind) as caught:
        environments.run_uv(["pip"])
    assert expected in str(caught.value) and "\n" not in str(caught.value) and "\x1b" not in str(caught.value)


# What uv and git write, without the lines that say nothing more.
CLONING = "error: Failed to download and build `trl @ git+https://x/trl`\n  cause: Git operation failed\n"
UNSOLVED = "error: No solution found when resolving dependencies\n  cause: Because trl was not found in the "
NETWORK = [
    "error: Failed to fetch: https://x/simple/trl/\n  cause: error sending request for url (https://x/simple/trl/)",
    "error: Failed to fetch: https://x/trl/\n  cause: HTTP status server error (503 Service Unavailable) for url (x)",
    "  cause: HTTP status client error (407 Proxy Authentication Required) for url (https://x/simple/trl/)",
    "  cause: tcp connect error\n  cause: Connection refused (os error 111)",
    "  ╰─▶ Failed to download distribution due to network\n      timeout. Try increasing UV_HTTP_TIMEOUT.",
    "error: Failed to download distributions\n  Caused by: request or response body error: operation timed out",
    "  ╰─▶ Network connectivity is disabled, but the\n      requested data wasn't found in the cache for: `torch.whl`",
    UNSOLVED + "cache.\n\nhint: Packages were unavailable because the network was disabled.",
    CLONING + "         fatal: unable to access 'https://x/trl/': Could not resolve host: x",
    "  \u00d7 Failed to resolve `--with` requirement\n  ╰─▶ Git operation failed",
]
STACK = [
    UNSOLVED + "package registry and you require trl, we can conclude that your requirements are unsatisfiable.",
    UNSOLVED + "registry: there is no version of timed out==1 and connection-refused==2 depends on handshake eof.",
    "error: Failed to fetch: https://x/trl.whl\n  cause: HTTP status client error (404 Not Found) for url (https://x)",
    CLONING + "         fatal: repository 'https://x/trl/' not found",
    CLONING + "  cause: failed to fetch branch or tag `nope`\n         fatal: couldn't find remote ref refs/tags/nope",
    "error: Failed to build `deepspeed==0.15.0`\n\n         [stderr]\n         OSError: Connection refused",
]


def test_what_the_network_did_is_no_outcome_and_what_a_stack_is_to_blame_for_is_one():
    """Breaks when a bad connection makes a release uninstallable, or a stack that doesn't exist ends a timeline."""
    assert [text for text in (*NETWORK, *STACK) if environments.unreachable(text)] == NETWORK


@pytest.fixture
def pip_config(tmp_path, monkeypatch):
    """pip's own configuration, as a file that it reads, and no variables."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    return lambda *lines: (tmp_path / "pip.conf").write_text("\n".join(("[install]", *lines)))


def test_pips_settings_reach_uv_however_pip_quotes_them(pip_config, monkeypatch):
    """Breaks when uv, which doesn't read pip's configuration, takes another build of torch from another index; a value
    with a quotation mark is lost; or pip's proxy takes the place of one that somebody set for all programs."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://it's/simple")
    pip_config(
        *("extra-index-url =", "  https://a/simple", "  https://b/simple", "index-url = https://old/simple"),
        *("find-links =", "  /bob's", "  /a=b", "proxy = http://me:a\"b'c@proxy:1"),
    )
    settings = pip.settings()
    assert settings["UV_DEFAULT_INDEX"] == "https://it's/simple" and settings["UV_FIND_LINKS"] == "/bob's,/a=b"
    assert settings["UV_INDEX"] == "https://a/simple https://b/simple"
    assert settings["HTTP_PROXY"] == settings["HTTPS_PROXY"] == "http://me:a\"b'c@proxy:1"

    monkeypatch.setenv("https_proxy", "http://shells:1")
    settings = pip.settings()
    assert settings["HTTP_PROXY"] == "http://me:a\"b'c@proxy:1" and "HTTPS_PROXY" not in settings


@pytest.mark.parametrize(
    ("value", "expected"), [("yes", "not found in the provided package locations"), ("no", "reached")]
)
def test_no_index_is_asked_where_pip_asks_none(pip_config, monkeypatch, tmp_path, value, expected):
    """Breaks when uv fetches what pip was told not to; the index is a port where nobody answers."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    pip_config(f"no-index = {value}", "index-url = http://127.0.0.1:9/simple")
    (tmp_path / "wanted.in").write_text("trl\n")
    with pytest.raises((Uninstallable, UsageError), match=expected):
        environments.run_uv(["pip", "compile", str(tmp_path / "wanted.in"), "--python", sys.executable])


@pytest.mark.parametrize(
    ("says", "answer"),
    [
        (None, "is no program"),
        ("", "does not run as Python"),
        ('[[3, 9], ""]', "is Python 3.9; 3.11 to 3.13 can be used"),
        ('[[3, 12], "torch==2.8.0\\n"]', "lacks trl, transformers, peft"),
        *((odd, "does not run as Python") for odd in ("{", "[[3, 12]]", '[["3", "12"], ""]', "[" * 10**5, "\xff\xfe")),
    ],
)
def test_an_interpreter_in_which_no_rank_can_run_is_refused(tmp_path, says, answer):
    """Breaks when a wrong --python ends in the traceback of a rank server."""
    python = tmp_path / "python"
    if says is not None:
        python.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
        python.chmod(0o755)
    with pytest.raises(UsageError, match=re.escape(answer)) as refused:
        environments.existing(str(python))
    assert "\n" not in str(refused.value)


def test_an_environment_of_somebodys_own_is_used_where_it_stands(monkeypatch):
    """A virtual environment's interpreter is a link: who follows it leaves the environment."""
    monkeypatch.chdir(sys.prefix)
    results = environments.existing("bin/python")
    assert results.python == f"{os.path.realpath(sys.prefix)}/bin/python"
    assert results.versions["trl"] == metadata.version("trl")


def test_what_a_stack_lacks_makes_a_cell_impossible():
    """Breaks when a release without Gemma3 makes its cells invalid, as if the suite were broken."""
    lacks = reports.error("Impossible", "this stack lacks it: Gemma3", kind="impossible")
    answer = runner.without_reference(lacks)
    assert (answer.outcome, answer.detail) == (Outcome.IMPOSSIBLE, "this stack lacks it: Gemma3")
    answer = runner.without_reference(reports.error("ValueError", "x"))
    assert (answer.outcome, answer.signature) == (Outcome.INVALID, "reference")
    assert answer.detail.startswith("ValueError: x (")
    assert runner.without_reference(reports.error(kind=DIED)).signature == "reference-died"


@pytest.mark.slow
def test_a_real_stack_is_made_and_answers(tmp_path, monkeypatch):
    """Breaks when uv's options, or its resolution next to torch as it is, change."""
    monkeypatch.setattr(environments, "cache", lambda: tmp_path)
    lock = "packaging==24.2\n"
    python = environments.make(lock).python
    code = "import packaging; print(packaging.__version__)"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "24.2"
    assert python != sys.executable
