"""A folder with several set-ups: each is judged by itself, with the defaults of its framework."""

import json
import re

import pytest

from faultline.audit import command, defaults, groups
from faultline.audit.project import read_project, read_recipes
from faultline.catalogue.loading import failures
from faultline.observations import ranges

GRPO = "reward_funcs: x\nnum_generations: 4\nuse_peft: true\ngradient_checkpointing: true\noutput_dir: out\n"
REENTRANT = GRPO + "gradient_checkpointing_kwargs: {use_reentrant: true}\n"
ZERO2 = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\n"
OLD = "trl==0.15.2\ntransformers==4.49.0\naccelerate==1.4.0\npeft==0.14.0\ndeepspeed==0.16.4\ntorch==2.13.0\n"
NO_GRAD = "grpo_lora_no_grad"
LAUNCH = "accelerate launch --config_file a.yaml -m trl.scripts.grpo --config {}\n"


def written(folder, files):
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def audited(*paths, **more):
    return command.answer(command.Request([*map(str, paths)], **more))


def recipes_of(folder):
    return read_recipes([str(folder)])[1]


def match_of(result, name):
    return next((each for each in result.findings if each.failure.name == name), None)


def test_each_recipe_is_judged_by_itself(tmp_path):
    """Breaks when what one recipe sets is an alternative of what another does, so that nothing is certain of either."""
    files = {
        "requirements.txt": OLD,
        "a.yaml": ZERO2,
        "bad.yaml": REENTRANT,
        "good.yaml": GRPO.replace("true", "false"),
    }
    folder = written(tmp_path, {**files, "run.sh": LAUNCH.format("bad.yaml") + LAUNCH.format("good.yaml")})
    result = audited(folder)
    assert [name.split()[0] for name in result.recipes] == ["bad.yaml", "good.yaml"]
    match = match_of(result, NO_GRAD)
    assert match.certain and match.recipes == ("bad.yaml (run.sh:1)",)
    assert "in             bad.yaml (run.sh:1)" in str(result)
    named = audited(*(folder / name for name in files))
    assert not named.recipes and not named.certain, "files that are named belong together"


def test_a_folder_may_have_its_requirements_elsewhere(tmp_path):
    """As the hook and the action are told of them; but a config that is named is no recipe of a folder."""
    written(
        tmp_path, {"r.txt": OLD, "c/a.yaml": ZERO2, "c/bad.yaml": REENTRANT, "c/more.yaml": REENTRANT, "one.yaml": GRPO}
    )
    result = audited(tmp_path / "r.txt", tmp_path / "c")
    assert (
        len(result.recipes) == 2 and len(match_of(result, NO_GRAD).recipes) == 2 and match_of(result, NO_GRAD).certain
    )
    assert not audited(tmp_path / "one.yaml", tmp_path / "c").recipes


def test_one_note_says_it_of_every_place(tmp_path):
    """Breaks when 33 scripts that train in fp16 make 33 lines."""
    command_line = "deepspeed train.py --fp16 --output_dir o\n"
    written(tmp_path, {"run.sh": command_line * 32 + f"cd x && {command_line.strip()} && {command_line}"})
    assert len(read_project([str(tmp_path)]).notes) == 1
    result = audited(tmp_path)
    assert len({*result.recipes}) == 34, "also two on one line"
    assert str(result).count("fp16 was not measured") <= 3


def test_a_page_shows_commands_and_a_config_finds_the_code_of_its_name(tmp_path):
    page = f"# Train\n\n```shell\n{LAUNCH.format('sft/one.yaml')}{LAUNCH.format('not-here.yaml')}```\nand so on\n"
    code = "from trl import {0}Config, {0}Trainer\n{0}Trainer(model, args={0}Config(output_dir='o'))\n"
    plain = "output_dir: o\nper_device_train_batch_size: 1\n"
    files = {"README.md": page, "a.yaml": ZERO2, "sft/one.yaml": plain, "dpo/two.yaml": plain}
    folder = written(tmp_path, files | {"dpo.py": code.format("DPO"), "sft.py": code.format("SFT")})
    result = audited(folder)
    assert {*result.recipes} == {"sft/one.yaml (README.md:4)", "dpo/two.yaml", "sft.py"}
    of = recipes_of(folder)
    assert of["dpo/two.yaml"].left["trainer"] == {"dpo"} and of["sft.py"].left["trainer"] == {"sft"}
    written(folder, {"run.sh": "accelerate launch dpo.py --config dpo/two.yaml --bf16 true\n", "free.yaml": plain})
    assert "trainer" not in recipes_of(folder)["free.yaml"].left, "which of two trainers it is for, nobody says"


def test_equal_recipes_cost_one_answer(tmp_path, monkeypatch):
    """Breaks when a folder of 250 recipes takes as long as 250 projects."""
    asked = []
    monkeypatch.setattr(groups, "findings", lambda project: asked.append(project) or [])
    written(tmp_path, {f"{number}.yaml": REENTRANT for number in range(250)})
    assert len(audited(tmp_path).recipes) == 250 and len(asked) == 1


def test_every_default_has_its_releases_and_its_line_upstream():
    for framework in defaults.frameworks():
        for default in framework.defaults:
            ranges.parse(default.versions)
            assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/blob/v[\w.]+/\S+#L\d+", default.source)
            assert default.values <= {"reentrant", "non-reentrant", "off", "yes", "no", "1.0"}


LLAMA = "stage: sft\nfinetuning_type: lora\noutput_dir: o\ndeepspeed: z3.json\ntemplate: x\n"
AXOLOTL = (
    "base_model: x\ndatasets: []\nadapter: lora\ngradient_checkpointing: true\ndeepspeed: z3.json\noutput_dir: o\n"
)
SWIFT = "swift sft --train_type lora --deepspeed zero3 --output_dir o\n"


@pytest.mark.parametrize(
    ("name", "text", "pins", "modes"),
    [
        ("l.yaml", LLAMA, "", "reentrant"),
        ("l.yaml", LLAMA + "disable_gradient_checkpointing: true\n", "", "off"),
        ("l.yaml", LLAMA + "use_reentrant_gc: false\n", "", "off non-reentrant"),
        ("l.yaml", LLAMA, "llamafactory==0.5.0", ""),
        ("a.yaml", AXOLOTL, "", "reentrant"),
        ("a.yaml", AXOLOTL + "rl: dpo\n", "", "non-reentrant"),
        ("a.yaml", AXOLOTL, "axolotl==0.4.0", "non-reentrant reentrant"),
        ("a.yaml", AXOLOTL + "unfrozen_parameters: [x]\n", "", "non-reentrant reentrant"),
        ("a.yaml", AXOLOTL + "gradient_checkpointing_kwargs: {use_reentrant: false}\n", "", "non-reentrant"),
        ("s.sh", SWIFT, "", "reentrant"),
        (
            "o.sh",
            "deepspeed --module openrlhf.cli.train_sft --zero_stage 3 --bf16 --max_epochs 1\n",
            "",
            "non-reentrant off",
        ),
    ],
)
def test_the_mode_that_a_framework_sets(tmp_path, name, text, pins, modes):
    z3 = '{"zero_optimization": {"stage": 3}, "gradient_clipping": "auto"}'
    folder = written(tmp_path, {name: text, "z3.json": z3, "requirements.txt": f"deepspeed==0.16.4\n{pins}\n"})
    assert read_project([str(folder)]).left.get("checkpointing", frozenset()) == {*modes.split()}


@pytest.mark.parametrize(("version", "mode"), [("3.5.0", "reentrant"), ("3.8.0", "non-reentrant")])
def test_the_mode_that_a_release_sets_under_ddp(tmp_path, version, mode):
    launch = "accelerate launch --multi_gpu swift/cli/sft.py --train_type lora --output_dir o --bf16 true\n"
    written(tmp_path, {"s.sh": launch, "requirements.txt": f"trl\nms-swift=={version}\n"})
    assert read_project([str(tmp_path)]).left["checkpointing"] == {mode}


@pytest.mark.parametrize(("name", "text"), [("l.yaml", LLAMA), ("a.yaml", AXOLOTL)])
def test_no_mode_is_suspected_that_a_framework_does_not_use(tmp_path, name, text):
    """The near miss says the other mode itself."""
    pins = OLD.replace("trl==0.15.2\n", "")
    z3 = '{"zero_optimization": {"stage": 3}, "gradient_clipping": "auto"}'
    files = {name: text + "bf16: true\n", "z3.json": z3, "requirements.txt": pins}
    failure = "zero3_nonreentrant_frozen_checkpointerror"
    assert not match_of(audited(written(tmp_path, files)), failure)
    other = (
        {name: text + "use_reentrant: false\n"}
        if name == "l.yaml"
        else {name: text + "gradient_checkpointing_kwargs: {use_reentrant: false}\n"}
    )
    (tmp_path / name).write_text(other[name].replace("stage: sft\n", "stage: sft\nuse_reentrant_gc: false\n"))
    assert match_of(audited(tmp_path), failure)


@pytest.mark.parametrize(
    ("pins", "values"),
    [
        ("accelerate==0.29.3", {"yes"}),
        ("accelerate==0.30.0", {"no"}),
        ("accelerate>=0.27", None),
        ("", None),
    ],
)
def test_accelerate_writes_the_norm_only_since_0_30(tmp_path, pins, values):
    written(tmp_path, {"a.yaml": ZERO2, "requirements.txt": f"trl\n{pins}\n"})
    assert read_project([str(tmp_path)]).left.get("no gradient_clipping") == values
    (tmp_path / "a.yaml").write_text(
        "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2, gradient_clipping: 1.0}\n"
    )
    assert read_project([str(tmp_path)]).left["no gradient_clipping"] == {"no"}


@pytest.mark.parametrize(
    ("deepspeed", "more", "word"),
    [
        ("0.16.4", "", "likely"),
        ("0.16.4", ", max_grad_norm=0.0", None),
        ("0.16.4", ", max_grad_norm=args.norm", "possible"),
        ("0.16.4", ", **more", "possible"),
        ("0.19.8", "", None),
    ],
)
def test_the_trainer_clips_at_1_unless_somebody_says_otherwise(tmp_path, deepspeed, more, word):
    """Breaks when a norm that nobody states is taken for one that nobody wants."""
    code = f"import transformers as t\nt.Trainer(m, t.TrainingArguments('o', deepspeed='z.json'{more}))\n"
    files = {"t.py": code, "z.json": '{"zero_optimization": {"stage": 2}}'}
    result = audited(written(tmp_path, files | {"setup.py": f"setup(install_requires=['deepspeed=={deepspeed}'])\n"}))
    match = match_of(result, "deepspeed_gradient_clipping_omitted")
    assert (match and match.word) == word


def test_versions_stand_in_setup_py_and_in_a_folder_of_requirements(tmp_path):
    written(tmp_path, {"setup.py": "DEPS = ['trl==1.15.0', 'x']\n", "requirements/train.txt": "deepspeed==0.19.8\n"})
    versions = read_project([str(tmp_path)]).versions
    assert {name: each.text for name, each in versions.items()} == {"trl": "==1.15.0", "deepspeed": "==0.19.8"}


def test_a_trainer_of_ones_own_may_do_otherwise_than_its_base(tmp_path):
    for base, values in (("Trainer", {"trainer", "another"}), ("SFTTrainer", {"sft", "another"})):
        (tmp_path / "t.py").write_text(
            f"class Base({base}): pass\nclass Mine(Base): pass\nMine(model, TrainingArguments('o'))\n"
        )
        assert read_project([str(tmp_path)]).left["trainer"] == values
    (tmp_path / "t.py").write_text("Trainer(model, TrainingArguments('o'))\n")
    assert read_project([str(tmp_path)]).left["trainer"] == {"trainer"}


@pytest.mark.parametrize(("flag", "value"), [("True", "yes"), ("False", "no")])
def test_a_switch_of_the_adapter_counts_more_than_its_rank(tmp_path, flag, value):
    (tmp_path / "run.sh").write_text(f"deepspeed train.py --lora_enable {flag} --lora_r 128 --output_dir o\n")
    assert read_project([str(tmp_path)]).left["adapter"] == {value}


def test_ids_are_short_and_of_one_failure_each():
    ids = [failure.id for failure in failures().values()]
    assert len({*ids}) == len(ids) and all(re.fullmatch(r"F[0-9a-f]{4}", each) for each in ids)
    assert failures()["zero3_dummy_loss"].id == "F1312", "an id stays as long as its failure's name does"


def test_a_project_says_what_to_ignore(tmp_path):
    """In pyproject.toml for all of it, or in a file for what that file takes part in."""
    files = {"requirements.txt": OLD, "a.yaml": ZERO2, "bad.yaml": REENTRANT}
    folder = written(tmp_path, files)
    assert audited(folder).certain == (NO_GRAD,)
    for name in (NO_GRAD, failures()[NO_GRAD].id):
        (folder / "bad.yaml").write_text(f"{REENTRANT}# faultline: ignore[{name}]\n")
        assert not match_of(audited(folder), NO_GRAD)
        (folder / "bad.yaml").write_text(REENTRANT)
        (folder / "pyproject.toml").write_text(f'[tool.faultline.audit]\nignore = ["{name}"]\n')
        assert not match_of(audited(folder), NO_GRAD) and f"ignored: {name}" in str(audited(folder))
        (folder / "pyproject.toml").unlink()
    (folder / "pyproject.toml").write_text('[tool.faultline.audit]\nignore = ["F0000"]\n')
    assert audited(folder).certain == (NO_GRAD,) and "no failure is called F0000" in str(audited(folder))


def test_notes_are_in_sarif_where_somebody_asks(tmp_path):
    folder = written(tmp_path, {"requirements.txt": OLD, "a.yaml": ZERO2, "bad.yaml": REENTRANT})
    for everything, levels in ((False, {"error", "warning"}), (True, {"error", "warning", "note"})):
        [run] = audited(folder, everything=everything).as_sarif()["runs"]
        assert {each["level"] for each in run["results"]} <= levels
        assert ("note" in {each["level"] for each in run["results"]}) == everything
        assert "undecided" in json.dumps(run["invocations"])
