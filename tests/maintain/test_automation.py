"""Workflows, the action and Renovate's settings hold to this project; check-jsonschema, in `make lint`, to schemas."""

import json
import os
import re
import shlex
import subprocess
import sys

import pytest
import yaml

from faultline.base import packages
from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.cli import app
from faultline.releases import is_safe
from faultline.runs import storage
from lab.proofs import upgrades
from tests.support.program import python

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text()
PINNED = re.compile(r"[\w-]+/[\w-]+(/[\w-]+)?@[0-9a-f]{40}")


def unknown(command):
    """The targets and variables of a make command that the Makefile doesn't have."""
    words = [word.partition("=") for word in shlex.split(command, comments=True)[1:]]
    targets = [name for name, equals, _ in words if not equals and not re.search(rf"^{name}:", MAKEFILE, re.M)]
    return targets + [name for name, equals, _ in words if equals and not re.search(rf"[(,]{name}\)", MAKEFILE)]


def commands(file):
    return re.findall(r"^\s*-? ?run: (.*)$", file.read_text(), re.M)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_calls_what_there_is_and_takes_no_more_than_it_needs(file):
    """Breaks when a workflow calls what was renamed, an action could be exchanged under its tag, a job may never end,
    or a stranger's text is made part of a command."""
    assert unknown("make test COLOUR=1 tidy") == ["tidy", "COLOUR"]
    for command in commands(file):
        if command.startswith("make "):
            assert not unknown(command), f"{file.name}: {command}"
        elif command.startswith(".venv/bin/python -m faultline "):
            words = shlex.split(command)[3:]
            verb = " ".join(words[: 2 if words[0] in ("fleet", "maintain", "prove") else 1])
            assert verb in app.commands(), f"{file.name}: there is no {verb}"
        else:
            known = (".venv/bin/python -m playwright ", "gh issue ", "cat results/is-safe-*/summary.md > ", "grep -q ")
            known += ("cat results/is-safe-*/summary.md >> ", "apt-get ", "git config ", ".venv/bin/python -m pytest ")
            assert command.startswith(known), f"{file.name}: {command} has logic, which belongs behind a command"
    text = file.read_text()
    uses = [action for action in re.findall(r"uses: (\S+)", text) if action != "./.faultline/action"]
    assert uses and all(map(PINNED.fullmatch, uses))
    assert re.search(r"^permissions:", text, re.M) and re.search(r"^concurrency:", text, re.M)
    assert text.count("runs-on:") == text.count("timeout-minutes:")
    assert text.count("actions/checkout@") == text.count("persist-credentials: false")
    assert not any("${{" in command for command in commands(file)), "an expression belongs in env"
    assert not any(re.search(r"\$\(|[`|;&]", command) for command in commands(file)), "logic belongs behind the command"
    assert "pull_request_target" not in text
    head, jobs = yaml.safe_load(text), yaml.safe_load(text)["jobs"]
    strangers = bool({"pull_request", "workflow_call"} & {*head[True]})  # YAML reads `on` as true
    for name, job in jobs.items():
        writes = "write" in (job.get("permissions") or head["permissions"]).values()
        runs = [step for step in job["steps"] if "run" in step or step["uses"].startswith(("actions/checkout", "./"))]
        assert not (strangers and "self-hosted" in job["runs-on"]), f"{name}: a stranger's code on our machine"
        assert not (strangers and writes and runs), f"{name}: a stranger's code beside a token that writes"


def test_what_automation_knows_of_the_stack_is_the_stack():
    """Breaks when a package was added to the stack, and the bump or the nightly run goes on without it."""
    rules = json.loads((ROOT / "renovate.json").read_text())["packageRules"]
    assert {name for rule in rules for name in rule.get("matchPackageNames", ())} == {*packages.NEEDED}
    nightly = next(file for file in WORKFLOWS if file.stem == "nightly")
    (request,) = re.findall(r'REQ="([^"]*)"', nightly.read_text())
    assert {*request.split()} == {*packages.NEEDED} - {"torch"}


def test_the_night_has_what_tests_need_and_skips_nothing(tmp_path):
    """Breaks when the night passes without what it had to skip, or fails as a session within a test skips something."""
    nightly = (ROOT / ".github" / "workflows" / "nightly.yml").read_text()
    assert {"iproute2", "zsh", "fish"} <= {*" ".join(re.findall("apt-get install (.*)", nightly)).split()}
    (options,) = re.findall("PYTEST_ADDOPTS: (.*)", nightly)
    file = tmp_path / "test_it.py"
    file.write_text("import os, pytest\ndef test_it(): 'PYTEST_ADDOPTS' in os.environ or pytest.skip('lacks it')")
    done = python("-m", "pytest", "-p", "no:cacheprovider", file, PYTEST_ADDOPTS=options)
    assert done.returncode == 1 and "was skipped: lacks it" in done.stdout, done.stdout


@pytest.fixture
def pins(tmp_path):
    def write(name, *lines):
        (tmp_path / name).write_text("\n".join(lines) + "\n")
        return tmp_path / name

    return write


def test_a_bump_is_the_packages_of_the_stack_whose_pins_differ(pins):
    old = pins("old.txt", "# why", "trl==1.15.0", "peft==0.21.2", "ruff==0.17.4", "Accelerate==1.14.0")
    new = pins("new.txt", "trl==1.16.0", "peft==0.21.2", "ruff==0.17.5", "accelerate==1.15.0")
    assert upgrades.differing(old, new) == ("trl==1.15.0 accelerate==1.14.0", "trl==1.16.0 accelerate==1.15.0")
    assert upgrades.differing(new, new) == ("", "")
    with pytest.raises(UsageError, match=r"new.txt doesn't pin trl"):
        upgrades.differing(pins("old.txt", "trl==1.15.0"), pins("new.txt", "trl>=1.15.0"))
    with pytest.raises(UsageError, match="can't be read"):
        upgrades.differing(new.parent / "none.txt", new.parent / "none.txt")


def test_is_safe_is_asked_of_the_difference(pins, monkeypatch, tmp_path):
    """Breaks when a bump is compared with else than what was pinned before, or one taken back leaves no summary."""
    monkeypatch.setattr(upgrades, "RESULTS", tmp_path / "results")
    calls = []
    here = re.sub(r"^trl==.*$", "trl==0.0.1", (ROOT / "requirements.txt").read_text(), flags=re.M)
    old = pins("old.txt", here)
    monkeypatch.setattr(is_safe, "run", lambda request: calls.append(request) or 3)
    assert app.main(["maintain", "replay", "--change", str(old)]) == 3
    (pinned,) = re.findall(r"^trl==.*$", (ROOT / "requirements.txt").read_text(), re.M)
    assert [(each.candidate, each.base) for each in calls] == [(pinned, "trl==0.0.1")]
    assert not list(tmp_path.glob("results/*")), "is-safe writes the summary itself"
    assert app.main(["maintain", "replay", "--change", str(ROOT / "requirements.txt")]) == 0 and len(calls) == 1
    (summary,) = tmp_path.glob("results/is-safe-*/summary.md")
    assert summary.read_text() == "## Nothing to compare: no pin of the stack changes\n"
    verdict = json.loads((summary.parent / "verdict.json").read_text())
    assert (verdict["verdict"], verdict["identical"]) == ("NOTHING TO COMPARE", True)
    with pytest.raises(UsageError, match="no is-safe run to resume"):
        storage.latest_run(tmp_path / "results", kind="is-safe")


FAULTLINE = """#!{python}
import os, pathlib, sys

words = sys.argv[1:]
with open("calls", "a") as calls:
    print(*words, file=calls)
if words[0] == "is-safe" and os.environ["CODE"] != "2":
    folder = pathlib.Path(os.environ["FAULTLINE_FOLDER"]) / "results" / "is-safe-2026-11-23T10-00-00"
    folder.mkdir(parents=True)
    (folder / "summary.md").write_text("## the verdict")
    (folder / "verdict.json").write_text('{{"identical": ' + os.environ["IDENTICAL"] + "}}")
print("the findings")
sys.exit(int(os.environ["CODE"]))
"""


@pytest.fixture
def action(tmp_path):
    """Run a step of action.yml in an empty folder beside a `faultline` that writes down how it was called."""
    command = tmp_path / "bin" / "faultline"
    command.parent.mkdir()
    command.write_text(FAULTLINE.format(python=sys.executable))
    command.chmod(0o755)

    def run(verb, code=0, identical="false", **inputs):
        env = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        env |= {"PATH": f"{command.parent}:{os.environ['PATH']}", "CODE": str(code), "IDENTICAL": identical}
        env |= {"FOLDER": str(tmp_path / "ours")}
        (tmp_path / "ours").mkdir(exist_ok=True)
        words = [str(ROOT / ".github" / "action.sh"), verb]
        done = subprocess.run(words, cwd=tmp_path, env=env | inputs, capture_output=True, text=True, check=False)
        return done.returncode, (tmp_path / "calls").read_text().splitlines(), done.stdout

    return run


@pytest.mark.parametrize(
    ("code", "fail", "ends"), [(0, "true", 0), (1, "true", 1), (1, "false", 0), (2, "true", 2), (2, "false", 2)]
)
def test_the_action_audits_for_both_readers_and_ends_as_audit_did(action, tmp_path, code, fail, ends):
    """Breaks when an option of audit that the action takes is split at a space, or a mistake passes as no finding."""
    got, calls, printed = action("audit", code, FILES="requirements.txt\n\n  \nmy configs\n", FAIL=fail)
    assert got == ends
    assert calls[0] == "audit --format sarif requirements.txt my configs"
    assert (tmp_path / "ours" / "faultline.sarif").read_text() == "the findings\n"
    assert code == 2 or calls[1:] == ["audit --format github requirements.txt my configs"]
    assert code == 2 or printed == "the findings\n"


@pytest.mark.parametrize("code", [0, 1, 2, 3])
def test_the_action_hands_on_what_is_safe_answered(action, tmp_path, code):
    """Breaks when an answer is lost, or every pull request gets a comment that it changes no pin."""
    got, (call,), _ = action("is-safe", code, BASE="trl==1.1.0", TO="trl==1.2.0", OPTIONS="--strategy zero* --all")
    assert (got, call) == (code, "is-safe --base trl==1.1.0 --to trl==1.2.0 --strategy zero* --all")
    assert (tmp_path / "GITHUB_STEP_SUMMARY").exists() == (code != 2)
    shown = f"summary={tmp_path}/ours/summary.md\n" if code != 2 else ""
    assert shown == ((tmp_path / "GITHUB_OUTPUT").read_text() if shown else "")
    if code == 2:  # which left no folder
        action("is-safe", identical="true", BASE="old.txt", TO="new.txt", OPTIONS="")
        assert (tmp_path / "GITHUB_OUTPUT").read_text().endswith("\nidentical=true\n")


def test_the_action_takes_its_inputs_as_variables_and_uses_and_describes_all():
    """Breaks when an input could be a command, nothing uses one, or the script has no such verb."""
    text, described = (ROOT / "action.yml").read_text(), (ROOT / "docs" / "ci.md").read_text()
    whole = yaml.safe_load(text)
    for name in whole["inputs"]:
        assert f"inputs.{name} " in text or f"inputs.{name}}}" in text, f"nothing uses {name}"
        assert f"| `{name}` |" in described, f"docs/ci.md lacks {name}"
    steps = whole["runs"]["steps"]
    script = (ROOT / ".github" / "action.sh").read_text()
    called = [step["run"].split()[-1] for step in steps if "run" in step]
    assert called == ["install", "audit", "is-safe"]
    assert all(f"\n{verb.replace('-', '_')}() {{" in script for verb in called)
    assert not any("${{" in step.get("run", "") for step in steps)
    assert all(PINNED.fullmatch(step["uses"]) for step in steps if "uses" in step)


def test_the_hook_and_the_container_call_what_there_is(tmp_path, monkeypatch, capsys):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    monkeypatch.chdir(tmp_path)
    (tmp_path / "requirements.txt").write_text("trl==0.15.2\n")
    words = [*shlex.split(hook["entry"]), *hook["args"]]
    assert words[0] == "faultline" and app.main(words[1:]) == 0
    assert "requirements.txt" in capsys.readouterr().out
    wanted = re.compile(hook["files"])
    assert all(map(wanted.search, ("requirements-gpu.txt", "a/uv.lock", "configs/grpo.yaml", "train.py", "run.sh")))
    assert not wanted.search("README.md")
    # The container runs what there is.
    text = (ROOT / "Containerfile").read_text()
    (command,) = re.findall(r"^CMD (.*)$", text, re.M)
    assert not unknown(shlex.join(json.loads(command))) and not unknown("make setup")
    assert re.search(r"^FROM docker\.io/nvidia/cuda:\d+\.\d+\.\d+-devel-", text, re.M)
