"""Stacks: what a name, a date or requirements mean, and environments of which no half is ever used."""

import os
import re
import subprocess
import sys
import threading
import time
from importlib import metadata

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

LOCK = "torch==2.13.0+cpu\ntransformers==4.49.0\ntrl==0.15.2\n"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of this test's own, in which uv's part is played by a function that counts its calls."""
    monkeypatch.setattr(environments, "cache", lambda: tmp_path / "stacks")
    calls = []

    def run_uv(words, held=()):
        calls.append(words)
        if words[0] == "venv":
            (environments.Path(words[-1]) / "bin").mkdir(parents=True)
            (environments.Path(words[-1]) / "bin" / "python").symlink_to(sys.executable)

    monkeypatch.setattr(environments, "run_uv", run_uv)
    return calls


@pytest.mark.parametrize("name", requests.named())
def test_every_stack_of_the_folder_is_read(name):
    """Breaks when a file in stacks/ has a typo, or lacks a package that the suite needs."""
    stack = requests.parse(name)
    assert stack.here == (name == "today")
    if not stack.here:
        assert {Requirement(text).name for text in stack.requirements} >= set(packages.NEEDED)
        assert stack.asof, "what the file leaves open would be another release every day"


def test_requirements_change_what_is_installed_and_nothing_else():
    """Breaks when a candidate is resolved without the versions that it is compared with."""
    stack = requests.parse("trl==1.12.0 Transformers>=5,<6")
    assert {"requests", "setuptools"} <= {*stack.requirements}, "older releases import what they don't declare"
    assert {"trl==1.12.0", "Transformers>=5,<6"} < {*stack.requirements} and "trl" not in stack.requirements
    pins = {text.split("==")[0] for text in stack.base}
    assert {"torch", "deepspeed", "numpy"} <= pins and not {"trl", "transformers"} & pins


def test_the_resolver_meets_trl_first():
    """Breaks when a dated stack has a trl of years before, because another package was resolved first."""
    assert requests.parse("2026-07-01").requirements[0] == "trl"
    assert requests.parse("transformers peft trl pyarrow>=20").requirements[0] == "trl", "as they were written"


def test_a_git_reference_is_a_requirement():
    """Breaks when an unreleased fix can't be tried."""
    stack = requests.parse("trl@git+https://git.example/trl@main")
    assert stack.requirements[0] == "trl@git+https://git.example/trl@main" and "trl" not in stack.requirements
    assert environments.pins("trl @ git+https://git.example/trl@abc\n") == {"trl": "git+https://git.example/trl@abc"}


@pytest.mark.parametrize(
    "url", ["git+file:///src/trl@main", "file:///trl-1.0-py3-none-any.whl#sha256=3", "https://x/trl"]
)
def test_what_is_kept_under_its_content_or_name_is_no_folder(url):
    """Breaks when a local repository or wheel is refused as a folder is, whose code changes under one name."""
    assert requests.parse(f"trl@{url}").requirements[0] == f"trl@{url}"


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
        ("peft==0.17 trl@file:/src/trl/", "is a folder"),
        ("trl@./trl", "is a folder"),
    ],
)
def test_a_mistake_is_one_line(text, expected):
    """Breaks when somebody's typo is resolved for a minute, or ends in a traceback."""
    with pytest.raises(UsageError, match=expected) as caught:
        requests.parse(text)
    assert "\n" not in str(caught.value)


def test_an_environment_is_made_once(cache):
    """Breaks when every run installs its stack anew, or two stacks share an environment."""
    first = environments.make(LOCK)
    assert environments.make(LOCK) == first and len(cache) == 2
    assert first.versions == {"torch": "2.13.0+cpu", "transformers": "4.49.0", "trl": "0.15.2"}
    assert environments.make(LOCK.replace("0.15.2", "0.16.0")).python != first.python


def test_an_environment_is_of_one_architecture(cache, monkeypatch):
    """Breaks when a cache that two kinds of machines share gives the one the libraries of the other."""
    first = environments.make(LOCK)
    monkeypatch.setattr(environments.platform, "machine", lambda: "riscv64")
    assert environments.make(LOCK).python != first.python


def test_an_environment_whose_interpreter_is_gone_is_made_anew(cache):
    """Breaks when cells are run by an interpreter that was removed after the environment was made."""
    python = environments.Path(environments.make(LOCK).python)
    python.unlink()
    python.symlink_to("/gone/bin/python")
    assert environments.make(LOCK).python == str(python) and len(cache) == 4 and python.exists()


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


def test_what_a_killed_installation_left_is_made_anew(cache):
    """Breaks when an environment without its mark is trusted."""
    folder = environments.Path(environments.make(LOCK).python).parent.parent
    (folder / environments.READY).unlink()
    (folder / "stale").touch()
    environments.make(LOCK)
    assert len(cache) == 4 and not (folder / "stale").exists()


def test_two_at_once_make_one_environment(cache):
    """Breaks when two runs install into the same folder."""
    threads = [threading.Thread(target=environments.make, args=(LOCK,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(cache) == 2


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
print(environments.make(sys.argv[2]).python)
"""


@pytest.mark.slow
def test_a_uv_that_outlives_a_killed_call_is_waited_for(tmp_path):
    """Breaks when the next call installs into the folder that the killed one's uv still writes to."""
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    command = [sys.executable, "-c", MAKER, str(tmp_path), LOCK]
    settings = {"cwd": paths.ROOT, "env": {**os.environ, "PLAYED": str(tmp_path)}, "stdout": subprocess.PIPE}
    first = subprocess.Popen(command, **settings)
    while not (tmp_path / "pid").exists():
        assert first.poll() is None, "it ended before its uv was at work"
        time.sleep(0.02)
    orphan = int((tmp_path / "pid").read_text())
    first.kill()
    first.wait()
    os.kill(orphan, 0)
    (tmp_path / "killed").touch()
    second = subprocess.Popen(command, **settings)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            second.wait(1.5)
    finally:
        (tmp_path / "go").touch()
    made, _ = second.communicate(timeout=30)
    assert not (tmp_path / "met").exists(), "two installations were at work in one folder"
    assert (
        second.returncode == 0 and (environments.Path(made.decode().strip()).parent.parent / "faultline.json").exists()
    )


@pytest.fixture
def maker(tmp_path, monkeypatch):
    """Another process that makes an environment, and lives until it is told to end."""
    monkeypatch.setattr(environments, "cache", lambda: tmp_path / "stacks")
    monkeypatch.setenv("PLAYED", str(tmp_path))
    (tmp_path / "uv").write_text(UV)
    (tmp_path / "uv").chmod(0o755)
    (tmp_path / "python").symlink_to(sys.executable)
    code = f"{MAKER}\nsys.stdout.flush(); input()"
    command = [sys.executable, "-c", code, str(tmp_path), LOCK]
    made = subprocess.Popen(command, cwd=paths.ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    yield made
    (tmp_path / "go").touch()
    made.communicate(timeout=30)


def test_environments_can_be_removed(tmp_path, maker, capsys):
    """Breaks when clean-stacks leaves gigabytes, or takes the environment of a run for one that nobody uses."""
    while not (tmp_path / "pid").exists():
        assert maker.poll() is None, "it ended before its uv was at work"
        time.sleep(0.02)
    half = next(path for path in environments.cache().iterdir() if path.is_dir())
    assert environments.clean() == ([], [half]), "it was being made"
    (tmp_path / "go").touch()
    made = environments.Path(maker.stdout.readline().strip()).parent.parent
    (environments.cache() / "killed").mkdir()
    assert app.main(["maintain", "clean-stacks"]) == 0
    assert (
        f"1 environment removed from {tmp_path / 'stacks'}; kept, as they are in use: {made.name}\n"
        in capsys.readouterr().out
    )
    assert (made / environments.READY).exists()
    maker.kill()
    maker.wait()
    assert environments.clean() == ([made], [])
    assert not list(environments.cache().iterdir())


def test_who_made_or_found_an_environment_uses_it(cache):
    """Breaks when a process whose environment another one made, or that runs nothing in it yet, loses it."""
    assert environments.clean() == ([], [])
    folder = environments.Path(environments.make(LOCK).python).parent.parent
    environments._marks.pop(folder).close()
    assert not environments.used(folder)
    environments.make(LOCK)
    assert environments.used(folder) and environments.clean() == ([], [folder])


@pytest.mark.parametrize(
    ("words", "kind", "expected"),
    [
        ("error: Failed to fetch: `https://x/simple/trl/`\n  cause: dns error", UsageError, "can't be reached"),
        ("error: failed to write\n  cause: No space left on device (os error 28)", UsageError, "disk is full"),
        (
            "  \x1b[31m\u00d7\x1b[0m No solution found\n  ╰─▶ Because a and b\n      c.\n\nhint: try",
            Uninstallable,
            "No solution found Because a and b c.",
        ),
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


FETCHING = "error: Request failed after 3 retries in 3.6s\n  cause: Failed to fetch: https://x/simple/trl/\n"
SENDING = FETCHING + "  cause: error sending request for url (https://x/simple/trl/)\n"
CLONING = """error: Failed to download and build `trl @ git+https://x/trl`
  cause: Git operation failed
  cause: failed to clone into: /home/me/.cache/uv/git-v2/db/9e762d0ac3ea043e
  cause: process didn't exit successfully: `/usr/bin/git fetch --force 'https://x/trl' '+HEAD:HEAD'` (exit status: 128)
         --- stderr
"""
WHEEL = "error: Failed to download `trl @ https://x/trl-1.0-py3-none-any.whl`\n"
UNSOLVED = "error: No solution found when resolving dependencies\n  cause: Because trl was not found in the "


@pytest.mark.parametrize(
    "text",
    [
        SENDING
        + "  cause: client error (Connect)\n  cause: tcp connect error\n  cause: Connection refused (os error 111)",
        SENDING + "  cause: client error (SendRequest)\n  cause: connection error\n  cause: Connection reset by peer",
        SENDING + "  cause: client error (Connect)\n  cause: dns error\n  cause: error resolving DNS",
        SENDING + "  cause: client error (Connect)\n  cause: tls handshake eof",
        SENDING + "  cause: operation timed out",
        FETCHING + "  cause: HTTP status server error (503 Service Unavailable) for url (https://x/simple/trl/)",
        FETCHING + "  cause: HTTP status client error (429 Too Many Requests) for url (https://x/simple/trl/)",
        "error: Failed to fetch: https://x/simple/trl/\n"
        "  cause: HTTP status client error (407 Proxy Authentication Required) for url (https://x/simple/trl/)",
        "  \u00d7 Failed to download `torch==2.1.2`\n  ├─▶ Failed to extract archive: torch-2.1.2-cp310.whl\n"
        "  ╰─▶ Failed to download distribution due to network\n      timeout. Try increasing UV_HTTP_TIMEOUT.",
        "error: Failed to download distributions\n  Caused by: Failed to extract source distribution\n"
        "  Caused by: request or response body error: operation timed out",
        "  \u00d7 Failed to download `torch==2.1.2`\n  ╰─▶ Network connectivity is disabled, but the\n"
        "      requested data wasn't found in the cache for: `https://x/torch.whl`",
        UNSOLVED + "cache and you require trl, we can conclude that your requirements are unsatisfiable.\n\n"
        "hint: Packages were unavailable because the network was disabled. When the network is disabled, registry "
        "packages may only be read from the cache.",
        CLONING + "         fatal: unable to access 'https://x/trl/': Could not resolve host: x",
        CLONING + "         fatal: unable to access 'https://x/trl/': The requested URL returned error: 503",
        CLONING + "         ssh: connect to host x port 22: Connection refused\n"
        "         fatal: Could not read from remote repository.",
        "  \u00d7 Failed to resolve `--with` requirement\n  ╰─▶ Git operation failed",
    ],
)
def test_what_the_network_did_is_no_outcome(text):
    """Breaks when a bad connection is recorded as a release that can't be installed; the texts are uv's own."""
    assert environments.unreachable(text)


@pytest.mark.parametrize(
    "text",
    [
        UNSOLVED + "package registry and you require trl, we can conclude that your requirements are unsatisfiable.",
        "error: No solution found when resolving dependencies\n  cause: Because there is no version of timed out==1\n"
        "         and connection-refused==2 depends on handshake eof, your requirements are unsatisfiable.",
        WHEEL + "  cause: Failed to fetch: https://x/trl-1.0-py3-none-any.whl\n"
        "  cause: HTTP status client error (404 Not Found) for url (https://x/trl-1.0-py3-none-any.whl)",
        CLONING + "         fatal: repository 'https://x/trl/' not found",
        CLONING.replace("  cause: process", "  cause: failed to fetch branch or tag `nope`\n  cause: process")
        + "         fatal: couldn't find remote ref refs/tags/nope",
        "error: Distribution not found at: file:///src/gone",
        "error: Failed to build `deepspeed==0.15.0`\n  cause: The build backend returned an error\n"
        "  cause: Call to `setuptools.build_meta.build_wheel` failed (exit status: 1)\n\n         [stderr]\n"
        "         ConnectionRefusedError: [Errno 111] Connection refused",
    ],
)
def test_what_a_stack_is_to_blame_for_is_one(text):
    """Breaks when a stack that doesn't exist ends a timeline as if the network had failed; the texts are uv's own."""
    assert not environments.unreachable(text)


def test_pips_settings_reach_uv(monkeypatch):
    """Breaks when uv, which doesn't read pip's configuration, takes another build of torch from another index."""
    listing = (
        "global.extra-index-url='https://a/simple\\nhttps://b/simple'\nglobal.find-links='/old'\n"
        ":env:.find-links='/wheels /more'\n:env:.index-url='https://c/simple'\n"
    )
    monkeypatch.setattr(pip, "ask", lambda *_: subprocess.CompletedProcess([], 0, stdout=listing))
    settings = pip.settings()
    assert settings["UV_INDEX"] == "https://a/simple https://b/simple"
    assert settings["UV_FIND_LINKS"] == "/wheels,/more"
    assert settings["UV_DEFAULT_INDEX"] == "https://c/simple"


@pytest.fixture
def pip_config(tmp_path, monkeypatch):
    """pip's own configuration, as a file that it reads, and no variables."""
    for name in list(os.environ):
        if name.startswith(("PIP_", "UV_")) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    return lambda *lines: (tmp_path / "pip.conf").write_text("\n".join(("[install]", *lines)))


def test_a_value_is_read_however_pip_quotes_it(pip_config, monkeypatch):
    """Breaks when a value with a quotation mark, which pip lists between other ones, is lost."""
    monkeypatch.setenv("PIP_INDEX_URL", "https://it's/simple")
    pip_config("find-links =", "  /bob's", "  /a=b", "proxy = http://me:a\"b'c@proxy:1")
    settings = pip.settings()
    assert settings["UV_DEFAULT_INDEX"] == "https://it's/simple" and settings["UV_FIND_LINKS"] == "/bob's,/a=b"
    assert settings["HTTP_PROXY"] == settings["HTTPS_PROXY"] == "http://me:a\"b'c@proxy:1"


def test_a_proxy_of_the_shell_stays(pip_config, monkeypatch):
    """Breaks when pip's proxy takes the place of one that somebody set for all programs."""
    pip_config("proxy = http://pips:1")
    monkeypatch.setenv("https_proxy", "http://shells:1")
    settings = pip.settings()
    assert settings["HTTP_PROXY"] == "http://pips:1" and "HTTPS_PROXY" not in settings


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
        ("", "does not run as Python"),
        ('[[3, 9], ""]', "is Python 3.9; 3.11 to 3.13 can be used"),
        ('[[3, 12], "torch==2.8.0\\n"]', "lacks trl, transformers, peft"),
    ],
)
def test_an_interpreter_in_which_no_rank_can_run_is_refused(tmp_path, says, answer):
    """Breaks when a wrong --python ends in the traceback of a rank server."""
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat <<'END'\n{says}\nEND\n")
    python.chmod(0o755)
    with pytest.raises(UsageError, match=re.escape(answer)) as refused:
        environments.existing(str(python))
    assert "\n" not in str(refused.value)


def test_an_interpreter_that_is_not_there_is_refused():
    with pytest.raises(UsageError, match="is no program"):
        environments.existing("/nowhere/python")


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
    assert (answer.outcome, answer.signature) == (Outcome.INVALID, "reference") and answer.detail.startswith(
        "ValueError: x ("
    )
    assert runner.without_reference(reports.error(kind=DIED)).signature == "reference-died", (
        "a death is told as an error"
    )


@pytest.mark.slow
def test_a_real_stack_is_made_and_answers(tmp_path, monkeypatch):
    """Breaks when uv's options, or its resolution next to torch as it is, change."""
    monkeypatch.setattr(environments, "cache", lambda: tmp_path)
    lock = "packaging==24.2\n"
    python = environments.make(lock).python
    code = "import packaging; print(packaging.__version__)"
    assert subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "24.2"
    assert python != sys.executable
