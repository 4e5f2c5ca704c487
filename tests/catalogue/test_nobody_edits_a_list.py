"""A failure is a folder: in a copy of the project, every command knows one more, and no other file is edited."""

import json
import shutil

import pytest

from faultline.base.errors import EXIT_AS_EXPECTED, EXIT_UNEXPECTED
from faultline.base.paths import ROOT
from tests.support.clone import cloned
from tests.support.program import python

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
[rank0]:   File "/env/lib/python3.11/site-packages/torch/nn/parallel/distributed.py", line 1661, in forward
[rank0]:     else self._run_ddp_forward(*inputs, **kwargs)
[rank0]: RuntimeError: a quokka sits in row 12
"""


# Several commands in one process, which takes a second to start: gives the exit code of each, and what it printed.
SEVERAL = """
import contextlib, io, json, sys
from faultline.cli import app
answers = []
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as out:
        answers.append((app.main(words), out.getvalue()))
print(json.dumps(answers))
"""


@pytest.fixture
def copy(tmp_path):
    """The project's files with one more folder."""
    place = cloned(tmp_path / "faultline")
    (place / "repros" / NAME).mkdir()
    for name, text in FOLDER.items():
        (place / "repros" / NAME / name).write_text(text)
    return place


def answers(place, *asked):
    """What commands of one process print, each of which has to end with the exit code behind it."""
    words = json.dumps([line.split() for line, _ in asked])
    ended = python("-c", SEVERAL, words, cwd=place)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    given = json.loads(ended.stdout.splitlines()[-1])
    assert [code for code, _ in given] == [code for _, code in asked], ended.stdout + ended.stderr
    return [out for _, out in given]


def project(place, mode):
    """A project of somebody who has, or hasn't, the setting that the failure needs."""
    place.mkdir()
    shutil.copy(ROOT / "requirements.txt", place)
    (place / "accelerate.yaml").write_text("distributed_type: MULTI_GPU\nmixed_precision: 'no'\n")
    settings = f"output_dir: out\nddp_find_unused_parameters: true\nquokka_mode: {mode}\n"
    (place / "train.yaml").write_text(settings)


def test_every_command_knows_a_failure_from_its_folder(copy):
    """Breaks when somebody who adds a failure has to edit a list, or a command doesn't know it then."""
    # One process for each, as one reads what another wrote.
    answers(copy, (f"run --failure {NAME}", EXIT_UNEXPECTED))
    answers(copy, (f"maintain bless --failure {NAME}", EXIT_AS_EXPECTED))
    answers(copy, ("maintain readmes", EXIT_AS_EXPECTED))
    rules = (copy / "repros" / NAME / "expected.toml").read_text()
    assert 'outcome = "raises"\nsignature = "quokka-found"' in rules and 'outcome = "diverges"' in rules
    assert "raises" in (copy / "repros" / NAME / "README.md").read_text()
    assert f"[{NAME}](../repros/{NAME}/README.md)" in (copy / "docs" / "catalogue.md").read_text()

    (copy / "known.log").write_text(f"12 marsupials loaded\n{ERROR}")
    (copy / "run.log").write_text(ERROR)
    (copy / "quiet.log").write_text("step 1\nQuokkaWarning: row 3 smiles\nstep 2\n")
    project(copy / "with", "true")
    project(copy / "without", "false")
    listed, ran, known, only, quiet, within, without, exported, shown = answers(
        copy,
        (f"list --failure {NAME} --ids", EXIT_AS_EXPECTED),
        (f"run --cell {BROKEN}", EXIT_AS_EXPECTED),
        ("diagnose known.log --json", EXIT_AS_EXPECTED),
        ("diagnose run.log", EXIT_UNEXPECTED),
        ("diagnose quiet.log", EXIT_UNEXPECTED),
        ("audit with --json", EXIT_UNEXPECTED),
        ("audit without --json", EXIT_AS_EXPECTED),
        (f"export {BROKEN}", EXIT_AS_EXPECTED),
        (f"show {NAME}", EXIT_AS_EXPECTED),
    )
    assert BROKEN in listed.splitlines() and "Every cell did what was expected" in ran
    diagnosis = json.loads(known)
    assert (diagnosis["failure"], diagnosis["sure"]) == (NAME, "certain")
    assert f"It is {NAME} only if the run has" in only and NAME in quiet
    for audit, applies in ((within, True), (without, False)):
        applying = {finding["failure"] for finding in json.loads(audit)["findings"] if finding["applies"]}
        assert (NAME in applying) == applies
    assert "a quokka sits in row 1" in exported and "https://example.org/1" in exported and "text_batch" in exported
    assert "look for quokkas first" in shown and "verified" in shown
