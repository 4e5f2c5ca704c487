"""The scripts for Slurm: what a shell and sbatch read in them is what was asked, whatever it is called."""

import os
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from faultline.base.errors import UsageError
from faultline.cli import fleet
from faultline.fleet import slurm
from faultline.fleet.slurm import Nodes, Run

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z"), include_characters=" "), min_size=1)
PRINTS = 'printf "%s\\0" "$@"\n'


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """A program in the place of Faultline, which prints its arguments."""
    file = tmp_path_factory.mktemp("odd 'folder") / 'prints "it"'
    file.write_text("#!/bin/sh\n" + PRINTS)
    file.chmod(0o755)
    return file


@pytest.mark.parametrize("ray", [False, True])
@pytest.mark.parametrize("asked", [(1,), (4, 2, 8, ["time=04:00:00", "exclusive"])])
def test_bash_reads_every_script(asked, ray, tmp_path):
    """Breaks when a script is no shell, or a folder's name is taken for its syntax."""
    folder = tmp_path / 'it\'s "odd" $(touch x) `y` #'
    nodes = Nodes(*asked, ray=ray)
    for name, text in slurm.scripts(nodes, Run(["--strategy=zero*"], tmp_path, folder)).items():
        done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
        assert not done.returncode and not done.stderr, name
        assert "{{" not in text and "{%" not in text


@settings(max_examples=25, deadline=None)
@given(asked=st.lists(TEXT, min_size=1, max_size=4), name=TEXT.filter(lambda text: not {"/", "\0"} & {*text}))
def test_faultline_is_given_what_was_asked(stand_in, asked, name):
    """Breaks when a quote, a blank or a pattern in an option or a folder's name is read by the shell."""
    folder = stand_in.parent / f"x{name}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slurm, "PROGRAM", (str(stand_in),))
        texts = slurm.scripts(Nodes(3), Run(asked, stand_in.parent, folder))
    environment = {**os.environ, "SLURM_ARRAY_TASK_ID": "2", "SLURMD_NODENAME": "n1"}
    shard = subprocess.run(["bash"], input=texts["shards.sbatch"].encode(), env=environment, capture_output=True)
    words = shard.stdout.split(b"\n", 1)[1].decode().split("\0")[:-1]
    assert words == ["run", *asked, "--shard", "2/3", "--results", f"{folder}/shard-2", "--resume"]
    merge = subprocess.run(["bash"], input=texts["merge.sbatch"].encode(), env=environment, capture_output=True)
    assert merge.stdout.decode().split("\0")[:-1] == ["fleet", "merge", str(folder)]


@given(TEXT)
def test_an_option_of_sbatch_stays_one_word(value):
    """Breaks when a comment with a blank or a # in it ends, or adds, an option."""
    assert shlex.split(slurm.checked(f"comment={value}")) == [f"comment={value}"]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        *((option, "long name") for option in ("time=1\n#SBATCH --wrap=x", "=1", "x y", "", "Time=1", "comment=")),
        *((option, "is set by the script") for option in ("array=1-9", "--nodes=2", "output=x")),
    ],
)
def test_what_is_no_option_of_sbatch_or_the_scripts_own_is_refused(option, words):
    """Breaks when shards get lost because somebody has another array than the script counts on."""
    with pytest.raises(UsageError, match=words):
        slurm.checked(option)


def test_options_reach_both_jobs_but_the_merge_takes_no_whole_node():
    nodes = Nodes(2, 4, options=["account=me", "--exclusive", "mem=100G"])
    texts = slurm.scripts(nodes, Run([], *[slurm.Path("/x")] * 2))
    assert "#SBATCH --gres=gpu:4\n" in texts["shards.sbatch"] and "gres" not in texts["merge.sbatch"]
    assert all("#SBATCH --account=me\n" in texts[name] for name in ("shards.sbatch", "merge.sbatch"))
    assert "--exclusive" in texts["shards.sbatch"] and "--mem" in texts["shards.sbatch"]
    assert "--exclusive" not in texts["merge.sbatch"] and "--mem" not in texts["merge.sbatch"]


def test_the_command_hands_on_what_is_asked_of_a_run(asked, tmp_path):
    """Breaks when an option of the run gets lost on the way to the nodes."""
    folder = tmp_path / "a run"
    words = ["--failure=zero3_dummy_loss", "--strategy=zero3,ddp", "--precision=fp32", "--workers=2", "--fresh"]
    code, out, errors = asked("fleet", "slurm", "--nodes", "2", *words, "--results", str(folder), "--sbatch", "time=9")
    assert code == 0 and not errors
    assert shlex.split(out.splitlines()[-1]) == ["bash", f"{folder}/submit.sh"]
    text = (folder / "shards.sbatch").read_text()
    assert shlex.join(words) in text and "--array=1-2\n" in text and "#SBATCH --time=9\n" in text
    assert (folder / "logs").is_dir()


def test_gpus_and_no_more_nodes_are_asked_for_than_cells_need(asked, tmp_path):
    """Breaks when a node is asked for that has nothing to do, or a cell on GPUs that has none."""
    asked("fleet", "slurm", "--nodes=1", "--gpus=2", "--strategy=ddp", f"--results={tmp_path}/gpus")
    one = "--cell=zero3_dummy_loss/broken/zero3/off/fp32/w2/cpu"
    asked("fleet", "slurm", "--nodes=9", one, f"--results={tmp_path}/one")
    gpus, cell = ((tmp_path / name / "shards.sbatch").read_text() for name in ("gpus", "one"))
    assert "--device=cuda" in gpus and "--gres=gpu:2" in gpus and "--array=1-1\n" in cell


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--nodes=0"], "--nodes must be at least 1"),
        (["--nodes=1", "--gpus=-1"], "--gpus must be at least 0"),
        (["--nodes=2", "--spread=2"], "--spread 2 needs --ray"),
        (["--nodes=1", "--device=cuda"], "need --gpus"),
        (["--nodes=1", "--gpus=1", "--device=cpu"], "no other cells do"),
        (["--nodes=1", "--sbatch=array=3"], "is set by the script"),
        (["--nodes=1", "--submit"], "there is no sbatch here"),
        (["--nodes=1", "--ray"], "--ray needs Ray"),
    ],
)
def test_a_mistake_is_seen_before_anything_is_written(asked, tmp_path, monkeypatch, words, why):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(fleet.importlib.util, "find_spec", lambda name: None)
    code, _, errors = asked("fleet", "slurm", *words, "--results", str(tmp_path / "run"))
    assert code == 2 and len(errors) == 1 and why in errors[0]
    assert not (tmp_path / "run").exists()


def test_a_folder_that_is_in_use_is_not_written_over_nor_merged(asked, tmp_path):
    (tmp_path / "notes").touch()
    code, _, [line] = asked("fleet", "slurm", "--nodes", "1", "--results", str(tmp_path))
    assert code == 2 and "is not empty" in line
    code, _, [line] = asked("fleet", "merge", str(tmp_path))
    assert code == 2 and "no shard has begun" in line and "logs" in line
