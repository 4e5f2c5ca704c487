"""The wheel, installed into an empty environment and used from another folder, as somebody does who has no clone."""

import json
import shutil
import sys
import zipfile
from functools import partial

import pytest

from faultline import __version__
from faultline.base.paths import ROOT

pytestmark = pytest.mark.slow

LARGEST = 60 << 20  # bytes of the base install
LOG = ROOT / "fixtures" / "logs" / "bunny-146.log"
CELLS = (
    "zero_double_reduction/broken/zero2/reentrant/fp32/w2/cpu",
    "zero_double_reduction/one_call/ddp/off/fp32/w2/cpu",
    "zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu",
    "fsdp2_forward_before_optimizer/broken/fsdp2/off/fp32/w2/cpu",
    "rank0_only_save/broken/ddp/off/fp32/w2/cpu",
)
PINS = '"nvidia-ml-py>=12.535" "pypi-simple>=1.8" "ruff>=0.17" "uv>=0.13"'


@pytest.fixture(scope="module")
def base(wheel, installed):
    program, folder = installed(f"faultline @ {wheel.as_uri()}")
    base = partial(program, "faultline")
    base.folder = folder
    return base


@pytest.fixture(scope="module")
def full(wheel, installed):
    return partial(installed(f"faultline[run] @ {wheel.as_uri()}")[0], "faultline")


def test_the_wheel_has_the_catalogue_and_no_leftovers(wheel):
    """Breaks when an install lacks what a failure reads, or brings logs, proofs or what keeps the catalogue."""
    names = zipfile.ZipFile(wheel).namelist()
    wanted = ("repros/rank0_only_save/failure.py", "ds_configs/zero3.json", "tiny_models/qwen2.py", "requirements.txt")
    assert {f"faultline/bundle/{name}" for name in wanted} <= set(names)
    data = {file.name for file in (ROOT / "fixtures").glob("*.json*")}
    assert {name.partition("/bundle/fixtures/")[2] for name in names} == {"", *data}
    assert {name.partition("/")[0] for name in names if ".dist-info/" not in name} == {"faultline"}
    assert not [name for name in names if name.endswith(".pyc") or "/tests/" in name or "/maintain/" in name]
    assert any(name.endswith("licenses/LICENSE") for name in names), "labs can't take what has no licence"


def test_the_base_install_is_small_and_answers_from_another_folder(base, tmp_path):
    """Breaks when a log can't be read without torch or a clone."""
    files = [file for file in base.folder.rglob("*") if file.is_file() and not file.is_symlink()]
    assert sum(file.stat().st_size for file in files) < LARGEST
    assert not list(base.folder.glob("lib/*/site-packages/torch"))
    assert base("--version", cwd=tmp_path).stdout.strip() == __version__
    shutil.copy(LOG, tmp_path / "train.log")
    named = base("diagnose", "train.log", cwd=tmp_path)
    assert named.returncode == 0 and "zero_double_reduction" in named.stdout and "train.log:" in named.stdout
    assert "\nDetails        faultline show zero_double_reduction" in named.stdout, "the next command can't be typed"
    piped = json.loads(base("diagnose", "--json", "-", cwd=tmp_path, stdin=LOG.read_text()).stdout)
    assert piped["failure"] == "zero_double_reduction"
    assert "custom_loss_ignores_num_items" in base("list", cwd=tmp_path).stdout
    assert "verified" in base("show", "zero_double_reduction", cwd=tmp_path).stdout
    assert "It trains in some of these cells" in base("show", "conditional", cwd=tmp_path).stdout
    (tmp_path / "requirements.txt").write_text("trl==0.15.2\n")
    audited = base("audit", "requirements.txt", cwd=tmp_path)
    assert audited.returncode in (0, 1) and not audited.stderr, "audit can't read a project"
    assert not (tmp_path / ".faultline").exists(), "what runs nothing leaves nothing"


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("run", "--failure", "rank0_only_save"), "not installed here: trl, torch"),
        (("export", CELLS[0]), f"needs nvidia-ml-py, pypi-simple, ruff and uv: pip install {PINS}"),
        (("report",), "start one with `faultline run`"),
        (("maintain", "bless"), "maintain keeps the catalogue, so it needs a clone of the repository"),
        (("explore", "--specs", "4"), "explore looks for new failures, so it needs a clone of the repository"),
    ],
)
def test_what_the_base_install_lacks_is_one_clear_line(base, tmp_path, words, answer):
    done = base(*words, cwd=tmp_path)
    assert done.returncode == 2 and answer in done.stderr and done.stderr.count("\n") == 1


def test_the_extra_exports_a_cell_and_runs_some_in_another_environment(full, tmp_path):
    done = full("export", CELLS[0], "-o", "repro.py", cwd=tmp_path)
    assert done.returncode == 0 and "REPRODUCED" in (tmp_path / "repro.py").read_text(), done.stderr
    done = full("run", "--python", sys.executable, "--cell", ",".join(CELLS), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    [lines] = (tmp_path / ".faultline" / "results").glob("*/cells.jsonl")
    results = [json.loads(line) for line in lines.read_text().splitlines()]
    assert sorted(result["id"] for result in results) == sorted(CELLS)
    assert {result["verdict"] for result in results} == {"expected"}
