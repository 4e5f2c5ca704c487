"""A failure is a folder: in a copy of the project, every command knows one more, and no other file is edited."""

import json
import shutil
import subprocess
import sys

import pytest

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.base.paths import ROOT

pytestmark = pytest.mark.slow

NAME = "quokka_in_batch"
BROKEN = f"{NAME}/broken/ddp-find-unused/off/fp32/w2/cpu"
FOLDER = {
    "failure.py": '''"""A quokka in the batch ends the run on several ranks."""

from faultline.catalogue import Failure, helps, variants

FAILURE = Failure(
    title="A quokka in the batch ends the run on several ranks",
    since="the first quokka",
    until="not fixed: it is made up",
    checkpointing=("off",),
    errors={"quokka-found": r"a quokka sits in row \\d+"},
    variants=(*variants("broken quiet_broken quokka_free", strategies=("ddp-find-unused",)),),
    claims={"https://example.org/2": helps("look for quokkas first", "broken", remedy="quokka_free")},
)


def scenario(remedy, setup):
    from tiny_models.kit import Scenario, causal_lm_loss, qwen2, text_batch

    def loss(model, batch):
        if remedy == "broken" and setup.world_size > 1:
            raise RuntimeError("a quokka sits in row 1")
        factor = setup.world_size if remedy == "quiet_broken" else 1
        return causal_lm_loss(model, batch) * factor

    return Scenario(qwen2(), loss, text_batch)
''',
    "recognise.toml": r"""
[setting.quokka_mode]

[project.broken]
needs = ["quokka_mode"]

[project.quiet_broken]
needs = ["quokka_mode"]

[error.quokka-found]
any_of = [{ present = 'marsupials? loaded' }]
distinguished_by = "marsupials in the log"

[[warning]]
pattern = 'QuokkaWarning: row \d+ smiles'
distinguished_by = "rows that should be trained on"
""",
    "history.toml": 'records = ["https://example.org/1"]\n',
    "README.md": """# A quokka in the batch

**Cause.** Somebody put it there.

<!-- measured: begin -->
<!-- measured: end -->
""",
}
ERROR = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "train.py", line 7, in <module>
[rank0]:     loss = model(batch)
[rank0]:   File "/env/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1661, in forward
[rank0]:     else self._run_ddp_forward(*inputs, **kwargs)
[rank0]: RuntimeError: a quokka sits in row 12
"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """The project's files with one more folder, whose cells were run and blessed."""
    place = tmp_path_factory.mktemp("copy") / "faultline"
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, place / name)
    (place / "repros" / NAME).mkdir()
    for name, text in FOLDER.items():
        (place / "repros" / NAME / name).write_text(text)
    faultline(place, "run", "--failure", NAME, code=EXIT_UNEXPECTED)
    faultline(place, "maintain", "bless", "--failure", NAME)
    faultline(place, "maintain", "readmes")
    return place


def faultline(place, *words, code=EXIT_AS_EXPECTED):
    """What a command prints, which ends with this exit code."""
    command = [sys.executable, "-m", "faultline", *words]
    ended = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
    assert ended.returncode == code, ended.stdout + ended.stderr
    return ended.stdout


def test_its_cells_are_listed_run_and_blessed(copy):
    assert BROKEN in faultline(copy, "list", "--failure", NAME, "--ids").splitlines()
    rules = (copy / "repros" / NAME / "expected.toml").read_text()
    assert 'outcome = "raises"\nsignature = "quokka-found"' in rules and 'outcome = "diverges"' in rules
    assert "Every cell did what was expected" in faultline(copy, "run", "--cell", BROKEN)


def test_its_error_is_diagnosed_and_certain_only_with_its_context(copy):
    (copy / "run.log").write_text(f"12 marsupials loaded\n{ERROR}")
    answer = json.loads(faultline(copy, "diagnose", "run.log", "--json"))
    assert (answer["failure"], answer["sure"]) == (NAME, "certain")
    (copy / "run.log").write_text(ERROR)
    assert f"It is {NAME} only if the run has" in faultline(copy, "diagnose", "run.log", code=EXIT_UNEXPECTED)


def test_its_warning_is_reported(copy):
    (copy / "quiet.log").write_text("step 1\nQuokkaWarning: row 3 smiles\nstep 2\n")
    assert NAME in faultline(copy, "diagnose", "quiet.log", code=EXIT_UNEXPECTED)


def test_a_project_with_its_setting_is_audited(copy):
    project = copy / "project"
    project.mkdir()
    shutil.copy(ROOT / "requirements.txt", project)
    (project / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nmixed_precision: 'no'\n")
    for setting, code in (("true", EXIT_UNEXPECTED), ("false", EXIT_AS_EXPECTED)):
        settings = f"output_dir: out\nddp_find_unused_parameters: true\nquokka_mode: {setting}\n"
        (project / "train.yaml").write_text(settings)
        answer = json.loads(faultline(copy, "audit", "project", "--json", code=code))
        applies = {finding["failure"] for finding in answer["findings"] if finding["applies"]}
        assert (NAME in applies) == (setting == "true")


def test_its_cell_is_exported_with_its_code(copy):
    text = faultline(copy, "export", BROKEN)
    assert "a quokka sits in row 1" in text and "https://example.org/1" in text and "text_batch" in text


def test_it_is_documented(copy):
    shown = faultline(copy, "show", NAME)
    assert "look for quokkas first" in shown and "verified" in shown
    assert "raises" in (copy / "repros" / NAME / "README.md").read_text()
    assert f"[{NAME}](../repros/{NAME}/README.md)" in (copy / "docs" / "catalogue.md").read_text()
