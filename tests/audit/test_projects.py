"""Project files: versions in every form that people have them, and hostile files in one line and no time."""

import contextlib
import io
import os
import re
import resource
import subprocess
import sys
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from faultline.base.errors import UsageError
from faultline.base.paths import ROOT
from faultline.projects import files
from faultline.projects import versions as asked_versions
from faultline.projects.documents import Document
from tests.support.projects import put, read_project, written


def versions(tmp_path, text, name="requirements.txt"):
    """The ranges that one file tells, by package."""
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return ranges_of(read_project([str(file)]))


def ranges_of(project):
    return {package: asked.text for package, asked in project.versions.items()}


REQUIREMENTS = """\
--extra-index-url https://example.org/simple
# what we train with
torch==2.6.0+cu124 ; sys_platform == "linux"
transformers[sentencepiece]>=4.48,<4.50   # not newer
trl @ git+https://github.com/huggingface/trl@v0.15.2#egg=trl
peft
accelerate==1.4.0 \\
    --hash=sha256:0000000000000000000000000000000000000000000000000000000000000000 \\
    --hash=sha256:1111111111111111111111111111111111111111111111111111111111111111
https://example.org/wheels/flash_attn-2.7.4-cp311-cp311-linux_x86_64.whl
-e ./ours
-r more.txt
"""
FORMS = [
    (
        "requirements.txt",
        REQUIREMENTS,
        "torch==2.6.0+cu124 transformers<4.50,>=4.48 trl==0.15.2 peft accelerate==1.4.0 deepspeed~=0.16.4",
    ),
    (
        "freeze.txt",
        "accelerate==1.4.0\n# Editable install with no version control (ours==0.1)\n-e /home/me/ours\n"
        "trl @ file:///wheels/trl-0.15.2-py3-none-any.whl#sha256=00\ntorch==2.6.0\nzipp==3.21.0\n",
        "accelerate==1.4.0 trl==0.15.2 torch==2.6.0",
    ),
    (
        "list.txt",
        "Package      Version\n------------ -------\naccelerate   1.4.0\n"
        "ours         0.1     /home/me/ours\ntrl  0.15.2\n",
        "accelerate==1.4.0 trl==0.15.2",
    ),
    ("list.json", '[{"name": "trl", "version": "0.15.2"}, {"name": "zipp", "version": "3.21.0"}]', "trl==0.15.2"),
    (
        "uv.lock",
        'version = 1\nrequires-python = ">=3.11"\n[[package]]\nname = "deepspeed"\nversion = "0.16.4"\n'
        'source = { registry = "https://example.org/simple" }\n'
        '[[package]]\nname = "ours"\nsource = { editable = "." }\n',
        "deepspeed==0.16.4",
    ),
    (
        "Pipfile.lock",
        '{"_meta": {"pipfile-spec": 6}, "default": {"trl": {"version": "==0.15.2"}, "peft": {}}, '
        '"develop": {"torch": {"version": "==2.6.0"}}}',
        "trl==0.15.2 peft torch==2.6.0",
    ),
    (
        "pyproject.toml",
        '[project]\nname = "ours"\nversion = "0.1"\ndependencies = ["trl>=0.15,<0.17", "rich"]\n'
        '[project.optional-dependencies]\nds = ["deepspeed==0.16.4"]\n[dependency-groups]\ndev = ["peft>=0.14"]\n',
        "trl<0.17,>=0.15 deepspeed==0.16.4 peft>=0.14",
    ),
    (
        "poetry/pyproject.toml",
        '[tool.poetry.dependencies]\npython = "^3.11"\ntrl = "^0.15.2"\n'
        'transformers = {version = "^4.48", extras = ["torch"]}\n'
        'peft = "0.14.0"\naccelerate = "~1.4"\ntorch = "*"\n',
        "trl<0.16.0,>=0.15.2 transformers<5.0,>=4.48 peft==0.14.0 accelerate<1.5,>=1.4 torch",
    ),
    (
        "environment.yml",
        "name: ours\nchannels: [conda-forge]\ndependencies:\n  - python=3.11\n  - pytorch=2.6.0\n  - pip\n  - pip:\n"
        "      - trl==0.15.2\n",
        "torch==2.6.0 trl==0.15.2",
    ),
    ("requirements.txt", "peft==0.14.0\ntrl==0.15.2 \\", "peft==0.14.0 trl==0.15.2"),
    (
        "requirements.txt",  # of which only one is for this Python
        "trl==0.15.2 ; python_version < '3.10'\ntrl==1.16.0 ; python_version >= '3.10'\n",
        "trl==1.16.0",
    ),
    *(
        ("requirements.txt", "trl==0.15.2\r\npeft==0.14.0\r\n".encode(encoding), "peft==0.14.0 trl==0.15.2")
        for encoding in ("utf-8", "utf-8-sig", "utf-16")  # as PowerShell writes
    ),
]


@pytest.mark.parametrize(("name", "text", "wanted"), FORMS)
def test_versions_in_the_forms_that_people_have_them(tmp_path, name, text, wanted):
    """Breaks when a file of versions is not known any more, or read wrongly."""
    put(tmp_path, {"more.txt": "deepspeed~=0.16.4\n-r requirements.txt\n", "poetry/none": ""})
    known = versions(tmp_path, text, name)
    assert {package + ",".join(sorted(asked.split(","))) for package, asked in known.items()} == {*wanted.split()}


def test_the_line_of_a_requirement_is_told(tmp_path):
    """Breaks when continued lines and comments shift what is told."""
    file = tmp_path / "requirements.txt"
    file.write_text(REQUIREMENTS)
    sources = read_project([str(file)]).sources
    for package, line in (("torch", 3), ("trl", 5), ("accelerate", 7)):
        assert sources[package][0].without_text == f"{file}:{line}"


@pytest.mark.parametrize("name", ["pyproject.toml", "setup.py", "environment.yml"])
def test_a_requirement_that_can_not_be_read_has_its_line_in_each_format(tmp_path, name):
    """Breaks when a marker that nests too deeply, or a slip, vanishes where requirements stand in a list."""
    deep = f"trl==0.15.2; {'(' * 1500}python_version > '3'{')' * 1500}"
    text = {
        "pyproject.toml": f'[project]\ndependencies = [\n"peft==0.14.0", "torch is fine", "{deep}"]\n',
        "setup.py": f'setup(\nkeywords=["torch is fine"],\ninstall_requires=["peft==0.14.0", "{deep}"])\n',
        "environment.yml": f'name: x\ndependencies:\n- "peft==0.14.0"\n- pip: ["{deep}"]\n',
    }[name]
    setup = written(tmp_path, {name: text})
    [note] = setup.notes
    assert {*setup.versions} == {"peft"} and re.match(rf"{name}:[34]: skipped, not a requirement like .*: trl==0", note)


def test_a_lock_narrows_requirements_and_a_contradiction_is_not_known(tmp_path):
    wanted, locked = "trl>=0.15\ndeepspeed>=0.17\n", "trl==0.15.2\ndeepspeed==0.16.4\n"
    setup = written(tmp_path, {"requirements.in": wanted, "requirements.txt": locked})
    assert setup.versions["trl"].pinned and "deepspeed" not in setup.versions
    assert any("no version of deepspeed fits" in note for note in setup.notes)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("accelerate=1.4.0", "not a requirement like trl==0.15.2: accelerate=1.4.0"),
        ("trl==", "not a requirement like trl==0.15.2: trl=="),
        ("<<<<<<< HEAD", "not a requirement like trl==0.15.2: <<<<<<< HEAD"),
        ("-r missing.txt", "missing.txt does not exist"),
        ("https://example.org/accelerate-1.4.0.zip", "write accelerate @ https://example.org/accelerate-1.4.0.zip"),
        ("git+https://example.org/trl", "trl comes from git+https://example.org/trl, so its version is unknown"),
        ("trl @ git+https://example.org/trl@336dc69d", "trl comes from git+https://example.org/trl@336dc69d"),
    ],
)
def test_a_line_that_can_not_be_read_is_named_and_the_others_are_read(tmp_path, asked, line, expected):
    """Breaks when one slip hides the rest of a file, or vanishes."""
    (tmp_path / "req.txt").write_text(f"peft==0.14.0\n{line}\n")
    for path in (tmp_path, tmp_path / "req.txt"):
        setup = read_project([str(path)])
        assert setup.versions["peft"].text == "==0.14.0" and set(setup.versions) == {"peft"}
        [note] = setup.notes
        assert "req.txt:2: " in note and expected in note
    code, out, _ = asked("audit", str(tmp_path))
    assert code == 0 and expected in out


@pytest.mark.parametrize(
    ("name", "form", "markers"),
    [
        ("uv.lock", 'resolution-markers = ["%s"]', ("sys_platform == 'linux'", "os_name == 'nt'")),
        ("poetry.lock", 'markers = "%s"', ("sys_platform != 'darwin'", "sys_platform == 'darwin'")),
        ("pylock.toml", 'marker = "%s"', ("os_name == 'posix'", "os_name == 'nt'")),
    ],
)
def test_of_several_locked_builds_the_one_for_linux_counts(tmp_path, name, form, markers):
    """Breaks when the builds of torch for several systems contradict each other, and none is known."""
    table = "packages" if name == "pylock.toml" else "package"
    text = 'lock-version = "1.0"\n' if name == "pylock.toml" else "version = 1\n"
    for build, marker in zip(("2.13.0", "2.12.0"), markers, strict=True):
        text += f'[[{table}]]\nname = "torch"\nversion = "{build}"\n{form % marker}\n'
    assert versions(tmp_path, text, name) == {"torch": "==2.13.0"}


def environment(folder, *packages):
    """The folder of an environment, as far as an audit looks at it, with the path of its interpreter."""
    for package in packages:
        (folder / "lib" / "python3.10" / "site-packages" / f"{package}.dist-info").mkdir(parents=True)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(sys.executable)
    return folder / "bin" / "python"


def test_an_environment_is_the_active_one(tmp_path, monkeypatch):
    """Breaks when somebody is told of Faultline's own packages in place of their project's."""
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    setup = read_project([], environment=True)
    assert setup.versions["torch"].pinned and setup.read == (f"what is installed in {sys.prefix}",)
    assert "Faultline's own" in setup.notes[0]
    monkeypatch.setenv("CONDA_PREFIX", str(tmp_path / "conda"))
    environment(tmp_path / "conda", "trl-0.15.2", "torch-2.5.1+cu124")
    for relevant in ("", sys.prefix, str(tmp_path / "gone")):
        monkeypatch.setenv("VIRTUAL_ENV", relevant)
        setup = read_project([], environment=True)
        assert ranges_of(setup) == {"trl": "==0.15.2", "torch": "==2.5.1+cu124"}
        assert setup.read == (f"what is installed in {tmp_path / 'conda'}",)
        assert not any("Faultline's own" in note for note in setup.notes)
    environment(tmp_path / "venv", "trl-0.16.0")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "venv"))
    assert ranges_of(read_project([], environment=True)) == {"trl": "==0.16.0"}


def test_an_environment_is_its_folder_or_its_interpreter(tmp_path, asked):
    """Breaks when a virtual environment, of whichever Python, says nothing, a link to an interpreter is followed out of
    its environment, or a slip ends in a traceback."""
    venv = tmp_path / "venv"
    python = environment(venv, "trl-0.15.2", "huggingface_hub-0.30.0")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\n")
    assert ranges_of(read_project([str(venv)])) == {"trl": "==0.15.2"}
    for named in (python, venv):
        setup = read_project([], python=str(named))
        assert setup.versions["trl"].text == "==0.15.2" and setup.read == (f"what is installed in {venv}",)
    _, out, _ = asked("audit", "--python", str(python))
    assert str(venv) in out and "trl" in out
    for wrong in (tmp_path / "absent", tmp_path, "/dev/null"):
        code, out, errors = asked("audit", "--python", str(wrong))
        assert code == 2 and not out and len(errors) == 1


def test_a_file_that_another_one_names_is_the_one_in_the_folder(tmp_path):
    """Breaks when one file is listed under two names."""
    train = "output_dir: x\nfsdp: full_shard\nfsdp_config: fsdp.json\n"
    put(tmp_path, {"train.yaml": train, "fsdp.json": '{"fsdp_version": 1}'})
    for place, name in ((tmp_path, "fsdp.json"), (tmp_path / "train.yaml", f"{tmp_path}/fsdp.json")):
        sources = read_project([str(place)]).sources["strategy"]
        shown = [*map(str, sources)]
        assert all(name in each and (place == tmp_path) != (str(tmp_path) in each) for each in shown), shown


def test_standard_input_is_a_file(monkeypatch, asked):
    """Breaks when ``pip freeze | python -m faultline audit -`` says nothing."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"trl==0.15.2\n")))
    code, out, _ = asked("audit", "-")
    assert out.startswith("Known  from standard input\n"), "one input has two names"
    assert code == 0 and "==0.15.2 (standard input:1 trl==0.15.2)" in " ".join(out.split())


def test_a_folder_gives_its_usual_files_and_no_others(tmp_path):
    """Breaks when a dependency's or a test's file speaks for a project, or its own is missed."""
    others = dict.fromkeys((f"{name}/requirements.txt" for name in ("node_modules", "tests", ".venv")), "trl==9.9")
    files = {
        "requirements.txt": "trl==0.15.2",
        "requirements/train.txt": "deepspeed==0.19.8",
        "setup.py": "DEPS = ['peft==0.14.0', 'x']",
        "configs/deep/ds.json": '{"zero_optimization": {"stage": 2}}',
        "package.json": '{"name": "ours"}',
        "broken.json": "{",
    }
    setup = written(tmp_path, files | others)
    assert set(setup.read) == {*[*files][:4]}
    assert ranges_of(setup) == {"trl": "==0.15.2", "deepspeed": "==0.19.8", "peft": "==0.14.0"}
    assert any("skipped (not recognised)" in note and "package.json" in note for note in setup.notes)
    assert "skipped: broken.json:1 is not valid JSON: Expecting property name enclosed in double quotes" in setup.notes


def test_a_folder_that_can_not_be_read_is_skipped_with_a_note(tmp_path, monkeypatch, asked):
    """Breaks when one closed folder ends an audit of all others."""
    config = '{"zero_optimization": {"stage": 2}}'
    put(tmp_path, {"requirements.txt": "trl==0.15.2", "open/ds.json": config, "closed/ds.json": config})
    scandir = os.scandir

    def closed(path):
        if str(path).endswith("closed"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    project = read_project([str(tmp_path)])
    assert set(project.read) == {"requirements.txt", "open/ds.json"}
    assert project.notes == ("skipped (can't be read, or leads out of the folder): closed",)
    code, _, errors = asked("audit", str(tmp_path / "closed"))
    assert code == 2 and len(errors) == 1 and "no requirements, lock file or training config in" in errors[0]


BOMB = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in pairwise("abcdefghijklmnop"))
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{b}: &{b} {{<<: [*{a}, *{a}, *{a}, *{a}, *{a}]}}\n" for a, b in pairwise("abcdefghijk")
)
BASES = [", ".join(f"A{n}_{i}" for i in range(30)) for n in range(1, 10)]
LEVELS = "".join(f"class A{n}_{i}({bases}): pass\n" for n, bases in enumerate(BASES) for i in range(30))
HOSTILE = {
    "missing.txt": None,
    "empty.txt": b"",
    "binary.bin": bytes(range(256)) * 50,
    "nul.txt": b"trl==0.15.2\x00\n",
    "words.txt": b"Notes\nWe train with trl and peft.\nAnd then?\n",  # of which some lines are a word
    "prose.md": b"# Train\n\nRun `pip install trl`, and then: train!\n",
    "code.py": b"import trl\nprint('hello')\n",
    "bases.py": LEVELS.encode() + b"A0_0(); SFTTrainer\n",  # a class has 30 bases, and each of these, and so on
    "nested.yaml": b"output_dir: " + b"[" * 50_000,
    "nested.toml": b"x = " + b"[" * 50_000,
    "bomb.yaml": BOMB.encode() + b"output_dir: x\n",
    "merges.yaml": MERGES.encode() + b"output_dir: x\n",
    "tag.yaml": b"output_dir: !!python/object/apply:os.system ['touch owned']\n",
    "long.yaml": b"output_dir: x\n" + b"a: b\n" * 100_000,
    "long.txt": b"trl==0.15.2\n" * 1_000_000,
    "line.txt": b"a" * 7_000_000,
    "escape\x1b[31m.txt": b"\xff\xfe\x00",
    "other.json": b'{"name": "package"}',
    "list.yaml": b"- a\n- b\n",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_or_foreign_file_ends_in_one_line(tmp_path, asked, name, monkeypatch):
    """Breaks when a file that says nothing ends in a traceback, runs, or writes to the terminal."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / name
    if HOSTILE[name] is not None:
        file.write_bytes(HOSTILE[name])
    code, out, errors = asked("audit", str(file))
    assert code == 2 and not out and len(errors) == 1, f"{out[:200]} {errors[:3]}"
    assert errors[0].startswith("faultline: ") and "\x1b" not in errors[0] and len(errors[0]) < 400
    assert not (tmp_path / "owned").exists(), "a config was run"


def test_texts_of_files_reach_the_terminal_tamed(tmp_path, asked):
    """Breaks when a value, a name or a version of a file can write to the terminal or forge a line."""
    escape = "\\u001b]0;owned\\u0007\\u001b[2J\\n\\u202eevil"
    train = f'output_dir: x\ndeepspeed: "zero3{escape}"\nlora_r: "{escape}"\nrl: "{escape}"\n'
    engine = f'distributed_type: "{escape}"\nmixed_precision: "fp8{escape}"\n'
    put(tmp_path, {"train.yaml": train, "accelerate.yaml": engine})
    for form in ((), ("--json",)):
        _, out, _ = asked("audit", str(tmp_path), *form)
        assert out and not any(mark in out for mark in ("\x1b", "\x07", "\u202e"))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["merges.yaml", "bomb.yaml", "nested.yaml", "long.txt", "line.txt", "nested.toml"])
def test_a_hostile_file_needs_little_memory(tmp_path, name):
    """Breaks when a small file can take the machine: within 2 GB of address space it ends as it should."""
    (tmp_path / name).write_bytes(HOSTILE[name])

    def bounded():
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        resource.setrlimit(resource.RLIMIT_CPU, (60, 60))

    command = [sys.executable, "-m", "faultline", "audit", str(tmp_path / name)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, preexec_fn=bounded)
    assert done.returncode == 2 and len(done.stderr.splitlines()) == 1, done.stderr[-500:]


@given(st.text(max_size=200), st.binary(max_size=200))
def test_any_text_is_read_or_refused(text, content):
    """Breaks when some text ends in anything but an answer or a refusal, or bytes are taken for a text that aren't."""
    with contextlib.suppress(UsageError):
        asked_versions.read(Document("x", ROOT / "x", text, files.parsed(text, "x")))
    assert "\x00" not in (files.decoded(content) or "")


KEYS = (
    "packages package name version lock-version project dependencies optional-dependencies dependency-groups tool "
    "poetry _meta default develop channels pip trl"
).split()
PLAIN = (
    st.none() | st.integers() | st.floats() | st.text(max_size=5) | st.sampled_from(["trl==1", "^1", "1.0", "trl=1"])
)
SHAPES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)),
    max_leaves=15,
)


@given(st.one_of(st.dictionaries(st.sampled_from(KEYS), SHAPES, max_size=6), st.lists(SHAPES, max_size=3)))
def test_lock_files_of_any_shape_are_read_or_passed_over(data):
    """Breaks when a lock file of a version to come ends in a traceback."""
    for pin in asked_versions.read(Document("x", ROOT / "x", "", data)) or ():
        assert pin.package == "trl" and pin.source.name == "x"
