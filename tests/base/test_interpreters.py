"""No process that is started here imports what lies in the folder that somebody is in: it may be a stranger's."""

import ast
import os
import subprocess
import sys
import zipfile

import pytest

from faultline.base.errors import UsageError
from faultline.base.interpreters import MOST, ask, command
from faultline.base.packages import NEEDED
from faultline.base.paths import PACKAGE, ROOT

STARTS = "run Popen call check_call check_output system popen execv execvp execve spawnv".split()
# What starts a program by another way than `ask(command(...))`, and which one that is.
OTHERS = {
    "faultline/base/interpreters.py": "ask",
    "faultline/cli/fleet.py": "bash",
    "faultline/export/emit.py": "ruff",
    "faultline/export/prove.py": "the exported file's Python, in a folder of its own",
    "faultline/runs/supervisor.py": "command",
    "faultline/stacks/environments.py": "uv",
    "website/screenshots.py": "command",
    "website/facts.py": "git",
}
PLANTED = sorted(
    {*sys.stdlib_module_names, *NEEDED, "pip", "venv", "uv", "ruff", "ray", "faultline", "setuptools", "pkg_resources"}
    | {"packaging", "msgspec", "numpy", "psutil", "rich", "sitecustomize", "usercustomize", "repros", "tiny_models"}
    | {"lab", "website"}
)
CELL = "zero_double_reduction/broken/zero2/reentrant/fp32/w2/cpu"
TRAIN = "import torch\n\ndef build():\n    return torch.nn.Linear(3, 1)\n"


def starts(tree):
    """The calls in a file that start a program."""
    calls = (node.func for node in ast.walk(tree) if isinstance(node, ast.Call))
    return [
        call
        for call in calls
        if isinstance(call, ast.Attribute) and call.attr in STARTS
        if isinstance(call.value, ast.Name) and call.value.id in ("subprocess", "os")
    ]


def test_one_helper_starts_interpreters():
    """Breaks when a new call of subprocess starts a Python that looks for modules in the current folder."""
    files = [file for house in ("faultline", "lab", "website") for file in (ROOT / house).rglob("*.py")]
    texts = {str(file.relative_to(ROOT)): file.read_text() for file in files}
    may = {name: text for name, text in texts.items() if "subprocess" in text or "os." in text}
    assert {name for name, text in may.items() if starts(ast.parse(text))} == {*OTHERS}
    for name, program in OTHERS.items():
        assert program != "command" or "command(" in texts[name], name


@pytest.fixture
def planted(tmp_path):
    """A folder with a file for each name that a Python might import; `imported` is what was."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    for name in PLANTED:
        (folder / f"{name}.py").write_text("open(__file__ + '.imported', 'w').close()\n")
    (folder / "requirements.txt").write_text("trl==0.15.2\n")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "train.py").write_text(TRAIN)

    def run(*words, **variables):
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        environment |= {"FAULTLINE_FOLDER": str(tmp_path / "written"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
        # What many people's shells come to where the variable was empty; the empty part is the current folder.
        environment |= {"PYTHONPATH": f"{tmp_path}:", "RUNNER_TEMP": str(tmp_path)} | variables
        done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        return done, sorted(file.name.removesuffix(".py.imported") for file in folder.glob("*.imported"))

    return run


def faultline(*words):
    """A command of Faultline, itself started as a console script starts it."""
    return [sys.executable, "-I", str(PACKAGE / "__main__.py"), *words]


def test_the_trap_works(planted):
    assert planted(sys.executable, "-m", "pip", "config", "list", PYTHONPATH="")[1]
    assert "json" in planted(sys.executable, "-c", "import json", PYTHONPATH="")[1]


OFFLINE = {"PIP_NO_INDEX": "1", "UV_OFFLINE": "1"}
COMMANDS = {
    "audit": ["audit", "."],
    "show": ["show", "zero_double_reduction"],
    "python": ["run", "--cell", CELL, "--python", sys.executable, "--fresh"],
    "stack": ["run", "--cell", CELL, "--stack", "trl==1.15.0"],
    "is-safe": ["is-safe", "trl==1.15.0", "--cell", CELL],
    "bisect": ["bisect", "--package", "trl", "--cell", CELL],
    "timeline": ["timeline", "--cell", CELL, "--since", "2026-09-01"],
    "reproduce": ["reproduce", "zero_double_reduction"],
    "check": ["check", "../elsewhere/train.py:build", "--strategy", "ddp"],
    "export": ["export", CELL, "--markdown"],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_of_the_current_folder_is_imported(planted, name):
    done, imported = planted(*faultline(*COMMANDS[name]), **OFFLINE)
    assert imported == []
    assert done.returncode in (0, 1, 2, 3) and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
def test_nothing_of_the_checkout_is_imported_by_the_action(planted, tmp_path):
    """Breaks when the step that makes the environment, or the audit whose page says that nothing is run, runs it."""
    wheel = tmp_path / "faultline-0-py3-none-any.whl"
    about = "Metadata-Version: 2.1\nName: faultline\nVersion: 0\nProvides-Extra: run\n"
    with zipfile.ZipFile(wheel, "w") as file:
        file.writestr("faultline-0.dist-info/METADATA", about)
        file.writestr("faultline-0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr("faultline-0.dist-info/RECORD", "")
        file.writestr("faultline-0.dist-info/entry_points.txt", "[console_scripts]\nfaultline = faultline.it:main\n")
        file.writestr("faultline/it.py", "import json\ndef main():\n    print('{}')\n")
    paths = {name: str(tmp_path / name) for name in ("GITHUB_PATH", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    with_python = f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}"
    script = str(ROOT / ".github" / "action.sh")
    done, imported = planted(script, "install", **paths, PATH=with_python, GITHUB_ACTION_PATH=str(wheel))
    assert (done.returncode, imported) == (0, []), done.stderr
    folder = (tmp_path / "GITHUB_OUTPUT").read_text().removeprefix("folder=").strip()
    with_faultline = f"{(tmp_path / 'GITHUB_PATH').read_text().strip()}:{with_python}"
    done, imported = planted(
        script, "audit", **paths, PYTHONPATH="", PATH=with_faultline, FOLDER=folder, FILES=".", FAIL="true"
    )
    assert (done.returncode, imported) == (0, []), done.stderr


def test_the_action_takes_no_result_from_the_checkout(planted, tmp_path):
    """Breaks when a pull request that commits the files of an is-safe run has planted its verdict."""
    old = tmp_path / "checkout" / ".faultline" / "results" / "is-safe-9999"
    old.mkdir(parents=True)
    (old / "summary.md").write_text("## SAFE")
    (old / "verdict.json").write_text('{"identical": true}')
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "faultline").write_text(
        "#!/bin/sh\nmkdir -p $FAULTLINE_FOLDER/results/is-safe-1\ncd $FAULTLINE_FOLDER/results/is-safe-1\n"
        "echo '## NOT SAFE' > summary.md\necho '{\"identical\": false}' > verdict.json\nexit 1\n"
    )
    (tmp_path / "bin" / "faultline").chmod(0o755)
    paths = {name: str(tmp_path / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    given = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "FOLDER": str(tmp_path), "BASE": "a", "TO": "b"}
    done, _ = planted(str(ROOT / ".github" / "action.sh"), "is-safe", **paths, **given, OPTIONS="--all\n--fresh\n")
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text() == "## NOT SAFE\n"
    assert (tmp_path / "GITHUB_OUTPUT").read_text() == f"summary={tmp_path}/summary.md\n"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        (f"while True: print('x' * {MOST})", "printed more than 8 MB"),
        ("import time; print(1, flush=True); time.sleep(1000)", "no answer within 2 seconds"),
        ("import os, time; os.close(1); os.close(2); time.sleep(1000)", "no answer within 2 seconds"),
    ],
)
def test_what_gives_no_answer_is_ended(code, why):
    with pytest.raises(UsageError, match=why):
        ask(command(sys.executable, "-c", code), patience=2)


def test_an_answer_is_what_was_printed():
    done = ask(command(sys.executable, "-c", "import sys; print(input()); sys.exit(3)"), "given\n")
    assert (done.returncode, done.stdout, done.stderr) == (3, "given\n", "")
    with pytest.raises(UsageError, match="can't be run"):
        ask(["/nowhere/python"])
