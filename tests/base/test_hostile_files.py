"""Files and words that somebody made to choke a reader: one clear line, or the file counts as none."""

import os

import msgspec
import pytest
from packaging.requirements import InvalidRequirement

from faultline.audit import sarif, shell
from faultline.base import console, errors
from faultline.base.errors import UNREADABLE, UsageError
from faultline.projects import documents, files, versions
from faultline.ranks import report
from faultline.releases import code_changes
from faultline.runs import results, storage
from faultline.stacks import requests
from tests.support.program import python
from tests.support.projects import read_project

DEEP = 100_000
BRACKETS = "[" * DEEP + "]" * DEEP


@pytest.mark.parametrize(
    "content",
    [
        f'{{"a": {BRACKETS}}}',
        f"trl = {BRACKETS}",
        "a" + ".a" * DEEP + " = 1",
        f"[{'a.' * DEEP}a]",
        f"trl==1.0; {'(' * 2000}python_version > '3'{')' * 2000}",
        f"trl=={'9' * 5000}",
        "trl: " + BRACKETS,
        "bf16: 0b" + "1" * 20_000,
        "bf16: 1" + ":59" * 4000,
        f"import x\nGRPOConfig(a={'(' * DEEP})\n",
    ],
)
def test_a_file_that_is_nested_or_long_is_a_line_at_most(tmp_path, asked, content):
    """Breaks when depth or the length of a number ends in a traceback."""
    for name in ("requirements.txt", "pyproject.toml", "uv.lock", "grpo.yaml", "ds.json", "train.py", "run.sh"):
        (tmp_path / name).write_text(content)
        code, _, lines = asked("audit", str(tmp_path / name))
        assert code in (0, 1, 2) and len(lines) <= 1, name


ASKED = [f"trl>={number}" for number in range(5001)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("requirements.txt", "\n".join(ASKED)),
        ("pyproject.toml", f"[project]\ndependencies = {ASKED}"),
        ("installed.txt", "Package Version\n" + "trl 1\n" * 5001),
        ("train.py", "SFTConfig(bf16=True)\n" * 101),
    ],
)
def test_more_than_any_project_has_is_refused(tmp_path, asked, name, content):
    """Breaks when a short file makes an audit take minutes."""
    (tmp_path / name).write_text(content)
    code, _, (line,) = asked("audit", str(tmp_path / name))
    assert code == 2 and "more than" in line


def test_what_is_asked_for_in_many_ways_is_unknown(tmp_path, monkeypatch):
    """Breaks when each requirement is held against all before it, or files that include each other are read anew."""
    (tmp_path / "requirements.txt").write_text("\n".join([*ASKED[:101], *["-r requirements.txt", "-r b.txt"] * 5]))
    (tmp_path / "b.txt").write_text("-r requirements.txt\n-r b.txt\npeft==0.1\n")
    seen = []
    monkeypatch.setattr(versions.files, "read", lambda *words, read=files.read: seen.append(words) or read(*words))
    project = read_project([str(tmp_path / "requirements.txt")])
    assert "asked for in 101 ways" in project.notes[0] and [*project.versions] == ["peft"] and len(seen) == 2


@pytest.mark.parametrize("link", [True, False])
def test_nothing_is_shown_of_what_lies_outside_of_a_project(tmp_path, asked, link):
    """Breaks when a stranger's pull request shows a file of the machine that audits it, by a link or an include."""
    (tmp_path / "private").write_text("trl==0.15.2\nthe secret is xyz\n")
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "ds.json").write_text('{"zero_optimization": {"stage": 2}}')
    requirements = tmp_path / "project" / "requirements.txt"
    requirements.symlink_to(tmp_path / "private") if link else requirements.write_text("-r ../private\n")
    for form in ([], ["--json"], ["--format", "sarif"]):
        code, out, lines = asked("audit", str(tmp_path / "project"), *form)
        assert (code, lines) == (0, []) and "xyz" not in out and (form or ("==0.15.2" in out) != link)


@pytest.mark.parametrize("word", [f"trl=={'9' * 5000}", f"trl<{'9' * 5000}", f"trl; {'(' * 3000}"])
def test_a_requirement_that_packaging_chokes_on_is_a_usage_error(asked, word):
    code, _, (line,) = asked("is-safe", word)
    assert code == 2 and "is not a requirement such as" in line and len(line) < 400
    with pytest.raises(InvalidRequirement):
        requests.parsed_requirement(word)
    assert str(requests.parsed_requirement("trl>=0.15,<1!2.0rc1").specifier)


def test_records_that_are_nested_too_deeply_are_none(tmp_path):
    assert results.read(f'{{"id": {BRACKETS}}}') is None and results.read(BRACKETS) is None
    for name in ("nested", "run.json"):
        (tmp_path / name).write_text(BRACKETS)
    os.mkfifo(tmp_path / "pipe")
    for there in ("nested", "pipe", "/dev/zero"):  # the last two would be waited for, or read without an end
        (tmp_path / "run.json").unlink()
        (tmp_path / "run.json").symlink_to(there)
        with pytest.raises(UsageError, match=r"no readable run\.json"):
            storage.RunFolder(tmp_path).info()
    assert {*code_changes.parts(f"x = {'(' * DEEP}".encode())} == {code_changes.BODY}
    with pytest.raises(UNREADABLE):
        msgspec.json.decode(BRACKETS)


def test_what_is_nested_too_deeply_anywhere_is_one_line(monkeypatch, asked):
    """Breaks when a reader that nobody thought of ends a command in a traceback."""

    def fall(*_, **__):
        raise RecursionError

    monkeypatch.setattr(files, "find", fall)
    code, _, (line,) = asked("audit", ".")
    assert code == 2 and "nested too deeply" in line


def test_only_packages_under_test_are_looked_for_in_a_lock():
    """Breaks when a lock of many packages is searched as a whole for each of them."""
    searches = []

    class Counted(str):
        def count(self, *args):
            searches.append(args)
            return super().count(*args)

        def find(self, *args):
            searches.append(args)
            return super().find(*args)

    names = [*(f"package{number}" for number in range(200)), "trl"]
    versioned = {name: {"version": "==1"} for name in names}
    packages = [{"name": name, "version": "1"} for name in names]
    for name, form, data, line in (
        ("uv.lock", '[[package]]\nname = "{}"\nversion = "1"', {"package": packages}, 602),
        ("pyproject.toml", "{}", {"project": {"dependencies": names}}, 201),
        ("Pipfile.lock", '"{}": 1', {"_meta": {}, "default": versioned}, 201),
    ):
        text = Counted("\n".join(map(form.format, names)))
        pins = versions.read(documents.Document(name, files.Path(name), text, data))
        assert [(pin.package, pin.source.line) for pin in pins] == [("trl", line)], name
    assert len(searches) <= 4, "each package costs a search"


HERE = "cat <<EOF > x.py\naccelerate launch --bf16 in.py\nEOF\npython train.py --bf16 {}\n"


def commands(text):
    return [*shell.commands(documents.Document("run.sh", files.Path("run.sh"), text))]


def test_documents_in_scripts_are_left_out_in_one_pass():
    matches = [command.words for command in commands(HERE.format("<<< EOF"))]
    assert matches[-1][:2] == ("python", "train.py") and not any("accelerate" in words for words in matches)
    assert len(commands("cat <<NEVER\npython train.py --bf16\n")) == 1, "a document without an end hides the rest"
    assert len(commands("cat <<A\nA\npython train.py --bf16\nA\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "A=" + "x" * 900 + "\npython t.py --a " + "$A" * 100_000,
        "A=" + "x" * 9000 + "\npython t.py --a " + "$A" * 10_000,
        "A=" + "x" * 3000 + "\n" + ("python t.py" + " $A" * 60 + "\n") * 50,
        "python t.py " + "$(" * 60_000,
        "python t.py " + " ".join(f"--flag{number}" for number in range(15_000)),
    ],
)
def test_what_a_script_expands_to_is_bounded(text):
    each = commands(text[: shell.LONGEST])
    sizes = [len(str(word)) for command in each for word in (*command.flags.values(), *command.words)]
    assert each and all(len(command.flags) <= shell.WORDS for command in each)
    assert sum(sizes) <= 2 * shell.LONGEST + (len(each) > 1) * shell.FILLED


def test_a_name_that_is_no_text_is_a_uri(tmp_path, monkeypatch, asked):
    """Breaks when a file whose name isn't UTF-8 ends an audit for code scanning."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"\xff.txt")
    (tmp_path / name).write_text("trl==0.15.2\n")
    assert sarif.artifact(tmp_path / name) == {"uri": "%FF.txt", "uriBaseId": sarif.BASE}
    for form in (["--format", "sarif"], ["--format", "github"], ["--json"]):
        code, out, lines = asked("audit", *form, name)
        assert code in (0, 1) and out and not lines
    for command in ("audit", "diagnose", "check"):
        _, out, lines = asked(command, name)
        assert command == "diagnose" or "\N{REPLACEMENT CHARACTER}.txt" in f"{out}{lines}", "as others show it"


class Untold(Exception):
    def __str__(self):
        raise ValueError("x")


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(28, "No space left on device"), errors.MACHINE),
        (RuntimeError("PytorchStreamWriter: write failed: No space left on device"), errors.MACHINE),
        (OSError(24, "Too many open files"), errors.MACHINE),
        (OSError(27, "File too large"), errors.MACHINE),
        (OSError(2, "No such file or directory"), errors.OTHER),
        (RuntimeError("no space in the buffer"), errors.OTHER),
        (Untold(), errors.OTHER),
    ],
)
def test_what_the_machine_lacks_is_told_from_what_a_model_does(error, kind):
    """Breaks when a full disk is booked as a fault of Faultline, or an error without a text ends its rank."""
    stated = report.error_report(error)
    assert stated.kind == kind and not stated.fault


def test_an_error_of_any_length_fits_into_a_report():
    """Breaks when an exception of 50 MB takes so long that its rank passes for one that hangs."""
    try:
        try:
            raise ValueError("a" * 10_000_000)
        except ValueError as first:
            raise RuntimeError("begins " + "b" * 10_000_000 + " ends") from first
    except RuntimeError as error:
        stated = report.error_report(error)
    assert stated.message.startswith("begins b") and stated.message.endswith("b ends")
    assert len(msgspec.json.encode(stated)) < 20 * report.LONGEST
    assert report.bounded("short") == "short"


LOG = "Traceback (most recent call last):\nValueError: ::error::planted ##[error]planted c10::Error\n"


@pytest.mark.parametrize("there", ["true", ""])
def test_nothing_of_a_log_is_a_command_of_github(tmp_path, there):
    """Breaks when a model's exception can write an annotation, or stop the log, of a workflow."""
    (tmp_path / "train.log").write_text(LOG)
    shown = python("-m", "faultline", "diagnose", tmp_path / "train.log", **{console.ACTIONS: there}).stdout
    planted = [line for line in shown.splitlines() if line.split("planted")[0].endswith((" ::error::", "##[error]"))]
    assert bool(planted) != bool(there) and "c10::Error" in shown


def test_audits_own_commands_reach_github(tmp_path):
    (tmp_path / "requirements.txt").write_text("trl==0.15.2\n")
    words = ("-m", "faultline", "audit", "--format", "github", tmp_path)
    assert python(*words, **{console.ACTIONS: "true"}).stdout.startswith("::")
