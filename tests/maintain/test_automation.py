"""Workflows and Renovate's configuration hold to this project; check-jsonschema, in `make lint`, to their schemas."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from faultline.base import packages
from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.cli import app
from faultline.maintain import bumps
from faultline.releases import is_safe
from faultline.runs import storage

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
POST = ROOT / ".github" / "post.sh"


def unknown(command, makefile):
    """The targets and variables of a make command that a Makefile doesn't have."""
    words = [word.partition("=") for word in shlex.split(command)[1:]]
    targets = [name for name, equals, _ in words if not equals and not re.search(rf"^{name}:", makefile, re.M)]
    return targets + [name for name, equals, _ in words if equals and not re.search(rf"[(,]{name}\)", makefile)]


def commands(file):
    return re.findall(r"^\s*-? ?run: (.*)$", file.read_text(), re.M)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_calls_what_there_is(file):
    """Breaks when a target or variable of the Makefile, or a command, was renamed and a workflow wasn't told."""
    for command in commands(file):
        if command.startswith("make "):
            assert not unknown(command, MAKEFILE), f"{file.name}: {command}"
        elif command.startswith(".venv/bin/python -m faultline "):
            words = shlex.split(command)[3:]
            verb = " ".join(words[: 2 if words[0] == "maintain" else 1])
            assert verb in app.commands(), f"{file.name}: there is no {verb}"
        elif not command.startswith(".venv/bin/python -m playwright "):
            script = command.split()[0]
            assert os.access(ROOT / script, os.X_OK), f"{file.name}: {script} is no script; its logic belongs in one"


@pytest.mark.parametrize("command", ["make tset", "make test COLOUR=1", "make test lint tidy=1 gone"])
def test_a_target_or_variable_that_is_gone_is_seen(command):
    assert unknown(command, MAKEFILE)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_takes_no_more_than_it_needs(file):
    """Breaks when an action could be exchanged under its tag, a job may never end, or text of a stranger's pull
    request is made part of a command."""
    text = file.read_text()
    uses = re.findall(r"uses: (\S+)", text)
    assert uses and all(re.fullmatch(r"actions/[\w-]+@[0-9a-f]{40}", action) for action in uses)
    assert re.search(r"^permissions:", text, re.M) and re.search(r"^concurrency:", text, re.M)
    assert text.count("runs-on:") == text.count("timeout-minutes:")
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert not any("${{" in command for command in commands(file)), "an expression belongs in env"
    assert not any(re.search(r"\$\(|[`|;&]", command) for command in commands(file)), "logic belongs behind the command"
    assert "pull_request_target" not in text
    assert not ("pull_request" in text.split("jobs:")[0] and re.search(r": write|self-hosted", text.split("jobs:")[1]))


def test_what_automation_knows_of_the_stack_is_the_stack():
    """Breaks when a package was added to the stack, and the bump or the nightly run goes on without it."""
    rules = json.loads((ROOT / "renovate.json").read_text())["packageRules"]
    assert {name for rule in rules for name in rule.get("matchPackageNames", ())} == {*packages.NEEDED}
    nightly = next(file for file in WORKFLOWS if file.stem == "nightly")
    (request,) = re.findall(r'REQ="([^"]*)"', nightly.read_text())
    assert {*request.split()} == {*packages.NEEDED} - {"torch"}


# ------------------------------------------------------------------------------------- what a pull request changes


@pytest.fixture
def pins(tmp_path):
    def write(name, *lines):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return tmp_path / name

    return write


def test_a_bump_is_the_packages_of_the_stack_whose_pins_differ(pins):
    old = pins("old.txt", "# why", "trl==1.15.0", "peft==0.21.2", "ruff==0.17.4", "Accelerate==1.14.0")
    new = pins("new.txt", "trl==1.16.0", "peft==0.21.2", "ruff==0.17.5", "accelerate==1.15.0")
    assert bumps.differing(old, new) == ("trl==1.15.0 accelerate==1.14.0", "trl==1.16.0 accelerate==1.15.0")
    assert bumps.differing(new, new) == ("", "")


def test_a_package_that_is_pinned_on_one_side_only_is_a_usage_error(pins, tmp_path):
    with pytest.raises(UsageError, match=r"new.txt doesn't pin trl"):
        bumps.differing(pins("old.txt", "trl==1.15.0"), pins("new.txt", "trl>=1.15.0"))
    with pytest.raises(UsageError, match="can't be read"):
        bumps.differing(tmp_path / "none.txt", tmp_path / "none.txt")


def test_is_safe_is_asked_of_the_difference(pins, monkeypatch, tmp_path):
    """Breaks when a pull request's bump is compared with anything else than what was pinned before, or one that was
    taken back leaves no summary to replace the old one."""
    monkeypatch.setattr(bumps, "RESULTS", tmp_path / "results")
    calls = []
    here = re.sub(r"^trl==.*$", "trl==0.0.1", (ROOT / "requirements.txt").read_text(), flags=re.M)
    old = pins("old.txt", here)
    monkeypatch.setattr(is_safe, "run", lambda request: calls.append(request) or 3)
    assert app.main(["maintain", "is-safe-change", str(old)]) == 3
    (pinned,) = re.findall(r"^trl==.*$", (ROOT / "requirements.txt").read_text(), re.M)
    assert [(each.candidate, each.base) for each in calls] == [(pinned, "trl==0.0.1")]
    assert not list(tmp_path.glob("results/*")), "is-safe writes the summary itself"
    assert app.main(["maintain", "is-safe-change", str(ROOT / "requirements.txt")]) == 0 and len(calls) == 1
    (summary,) = tmp_path.glob("results/is-safe-*/summary.md")
    assert summary.read_text() == "## Nothing to compare: no pin of the stack changes\n"
    verdict = json.loads((summary.parent / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["identical"]) == ("NOTHING TO COMPARE", True)
    with pytest.raises(UsageError, match="no is-safe run to resume"):
        storage.latest_run(tmp_path / "results", kind="is-safe")


# ---------------------------------------------------------------------------------------------- what is posted


GH = """#!{python}
import json, pathlib, subprocess, sys

words = sys.argv[1:]
with open("calls", "a") as calls:
    print(*words, file=calls)
content = json.loads(pathlib.Path("github.json").read_text())
head = next((word.removeprefix("head=") for word in words if word.startswith("head=")), "")
if words[:2] == ["issue", "list"]:
    print(*content["issues"])
elif head:
    listed = [each for each in content["pulls"] if each["head"] == head and each["state"] == "open"]
elif "--jq" in words:
    listed = content["comments"]
elif "body=@-" in words or "--body-file" in words:
    pathlib.Path("body").write_bytes(sys.stdin.buffer.read())
if "--jq" in words and words[0] == "api":
    subprocess.run(["jq", "-r", words[words.index("--jq") + 1]], input=json.dumps(listed), text=True, check=True)
"""
PULLS = [
    {"number": 6, "head": "us:123", "state": "closed"},
    {"number": 7, "head": "us:123", "state": "open"},
    {"number": 8, "head": "them:fix/1", "state": "open"},
    {"number": 123, "head": "us:other", "state": "open"},
]
BOT = "github-actions[bot]"
MARK = "<!-- faultline: is-safe -->"


@pytest.fixture
def post(tmp_path):
    """Run post.sh in an empty folder beside a `gh` that has but what it is given, and writes down what it is told."""
    gh = tmp_path / "bin" / "gh"
    gh.parent.mkdir()
    gh.write_text(GH.format(python=sys.executable))
    gh.chmod(0o755)

    def run(*argv, summary=None, identical=False, issues=(), comments=()):
        (tmp_path / "calls").write_text("")
        (tmp_path / "body").write_bytes(b"")
        posted = [{"id": 40 + i, "user": {"login": login}, "body": body} for i, (login, body) in enumerate(comments)]
        (tmp_path / "github.json").write_text(json.dumps({"issues": issues, "pulls": PULLS, "comments": posted}))
        if summary is not None:
            folder = tmp_path / "results" / "is-safe" / "is-safe-2026-11-21T10-00-00"
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "summary.md").write_bytes(summary)
            (folder / "verdict.json").write_text(json.dumps({"identical": identical}, indent=2))
        env = {"PATH": f"{gh.parent}:{os.environ['PATH']}", "GITHUB_REPOSITORY": "us/faultline"}
        subprocess.run([str(POST), *argv], cwd=tmp_path, env=env, check=True, capture_output=True)
        return (tmp_path / "calls").read_text().splitlines()

    run.body = lambda: (tmp_path / "body").read_bytes()
    return run


needs_jq = pytest.mark.skipif(not shutil.which("jq"), reason="jq plays the part of the GitHub CLI's own")


@needs_jq
@pytest.mark.parametrize(("head", "number"), [("them:fix/1", 8), ("us:123", 7)])
def test_a_pull_request_gets_a_comment(post, head, number):
    """Breaks when a fork's pull request isn't found, or a branch called 123 is taken for pull request 123."""
    *_, call = post("comment", head, "https://run", summary=b"NOT SAFE")
    assert call == f"api --method POST repos/us/faultline/issues/{number}/comments -F body=@- --silent"
    assert post.body().startswith(MARK.encode()) and post.body().endswith(b"NOT SAFE")
    assert b"(https://run)" in post.body()


@needs_jq
def test_a_pull_request_keeps_one_comment(post):
    """Breaks when each push adds a comment, or one of another workflow or of a person is overwritten."""
    others = [(BOT, "coverage"), ("somebody", MARK), (BOT, f"quotes {MARK}")]
    *_, call = post("comment", "us:123", "u", summary=b"SAFE", comments=[*others, (BOT, f"{MARK}\nold"), *others])
    assert call == "api --method PATCH repos/us/faultline/issues/comments/43 -F body=@- --silent"
    *_, call = post("comment", "us:123", "u", comments=others)
    assert "--method POST" in call


@needs_jq
def test_a_bump_that_was_taken_back_is_no_longer_called_unsafe(post):
    """Breaks when an old verdict stays, or every pull request is told that it changes no pin."""
    answer = b"## Nothing to compare\n"
    *_, call = post("comment", "us:123", "u", summary=answer, identical=True, comments=[(BOT, f"{MARK}\nNOT SAFE")])
    assert "PATCH" in call and post.body().endswith(answer)
    post("comment", "us:123", "u")
    assert not post.body()


def test_without_a_summary_nothing_is_commented(post):
    assert post("comment", "them:fix/1", "https://run") == []


@needs_jq
def test_without_a_pull_request_nothing_is_commented(post):
    """Breaks when a branch whose pull request was closed in the meantime ends in an error, or comments elsewhere."""
    assert len(post("comment", "us:gone", "https://run", summary=b"SAFE")) == 1


@needs_jq
def test_a_summary_mentions_nobody_and_fits(post):
    """Breaks when a pull request from a fork can call people, or a long or torn summary ends in no comment at all."""
    post("comment", "them:fix/1", "u", summary="é@everyone".encode() + b"\xff" + b"x" * 200_000)
    text = post.body().decode()
    assert "@everyone" not in text and "everyone" in text and len(text) < 65_536


@pytest.mark.parametrize(
    ("issues", "result", "calls"),
    [
        ("", "success", ["list"]),
        ("", "failure", ["list", "create", "create"]),
        ("7", "failure", ["list", "edit 7", "reopen 7"]),
        ("7", "cancelled", ["list", "edit 7", "reopen 7"]),
        ("7", "success", ["list", "edit 7", "close 7"]),
    ],
)
def test_the_nightly_run_keeps_to_one_issue(post, issues, result, calls):
    """Breaks when every bad night opens an issue of its own, or a good one leaves it open."""
    asked = post("issue", result, "https://run", summary=b"what broke", issues=issues)
    assert [call.split(" ", 1)[1].split(" --")[0].replace(" newest-releases", "") for call in asked] == calls
    if len(calls) > 1:
        assert post.body().endswith(b"what broke")
