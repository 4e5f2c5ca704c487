"""A folder with several set-ups: each is judged by itself, with the defaults of its framework."""

import re

import pytest

from faultline.audit import command, defaults
from faultline.audit.project import read_recipes
from faultline.catalogue.loading import failures
from faultline.observations import ranges
from tests.support.projects import GRPO, pins, put, written

OLD, REENTRANT = GRPO["requirements.txt"], GRPO["grpo.yaml"]
ZERO2 = "distributed_type: DEEPSPEED\ndeepspeed_config: {zero_stage: 2}\n"
NO_GRAD = "grpo_lora_no_grad"
OWN_TRAINER = "from transformers import Trainer\nclass MyTrainer(Trainer): pass\nMyTrainer(model)\n"
LAUNCH = "accelerate launch --config_file a.yaml -m trl.scripts.grpo --config {}\n"


def audited(*paths, **more):
    return command.answer(command.AuditRequest([*map(str, paths)], **more))


def match_of(result, name):
    return next((each for each in result.findings if each.failure.name == name), None)


def test_each_recipe_is_judged_by_itself(tmp_path):
    """Breaks when what one recipe sets is an alternative of what another does, so that nothing is certain of either."""
    files = {"requirements.txt": OLD, "a.yaml": ZERO2, "bad.yaml": REENTRANT}
    files["good.yaml"] = REENTRANT.replace("true", "false")
    run = LAUNCH.format("bad.yaml") + LAUNCH.format("good.yaml")
    result = audited(put(tmp_path, {**files, "run.sh": run}))
    assert [name.split()[0] for name in result.recipes] == ["bad.yaml", "good.yaml"]
    match = match_of(result, NO_GRAD)
    assert match.certain and match.recipes == ("bad.yaml (run.sh:1)",)
    assert "in             bad.yaml (run.sh:1)" in str(result)
    named = audited(*(tmp_path / name for name in files))
    assert not named.recipes and not named.certain, "files that are named belong together"


def test_a_folder_may_have_its_requirements_elsewhere(tmp_path):
    """As the hook and the action are told of them; but a config that is named is no recipe of a folder."""
    configs = dict.fromkeys(("c/bad.yaml", "c/more.yaml", "one.yaml"), REENTRANT)
    put(tmp_path, {"r.txt": OLD, "c/a.yaml": ZERO2, **configs})
    result = audited(tmp_path / "r.txt", tmp_path / "c")
    match = match_of(result, NO_GRAD)
    assert len(result.recipes) == len(match.recipes) == 2 and match.certain
    results = [each for each in result.as_sarif()["runs"][0]["results"] if each["ruleId"] == NO_GRAD]
    files = {place["physicalLocation"]["artifactLocation"]["uri"] for each in results for place in each["locations"]}
    assert {file.rpartition("/")[2] for file in files} == {"bad.yaml", "more.yaml"}, "each recipe has a result"
    [first, *_] = result.as_json()["findings"]
    for name, places in first["places"].items():
        assert name in match.recipes and places["adapter"][0].startswith(name)
    assert not audited(tmp_path / "one.yaml", tmp_path / "c").recipes


def test_one_note_says_it_of_every_place(tmp_path):
    """Breaks when 33 scripts that train in fp16 make 33 lines."""
    command_line = "deepspeed train.py --fp16 --output_dir o\n"
    script = command_line * 32 + f"cd x && {command_line.strip()} && {command_line}"
    assert len(written(tmp_path, {"run.sh": script}).notes) == 1
    result = audited(tmp_path)
    assert len({*result.recipes}) == 34, "also two on one line"
    assert str(result).count("fp16 was not measured") <= 3


def test_a_page_shows_commands_and_a_config_finds_the_code_of_its_name(tmp_path):
    page = f"# Train\n\n```shell\n{LAUNCH.format('sft/one.yaml')}{LAUNCH.format('not-here.yaml')}```\nand so on\n"
    code = "from trl import {0}Config, {0}Trainer\n{0}Trainer(model, args={0}Config(output_dir='o'))\n"
    plain = "output_dir: o\nper_device_train_batch_size: 1\n"
    files = {"README.md": page, "a.yaml": ZERO2, "sft/one.yaml": plain, "dpo/two.yaml": plain}
    folder = put(tmp_path, files | {"dpo.py": code.format("DPO"), "sft.py": code.format("SFT")})
    assert {*audited(folder).recipes} == {"sft/one.yaml (README.md:4)", "dpo/two.yaml", "sft.py"}
    of = read_recipes([folder])[1]
    assert of["dpo/two.yaml"].left["trainer"] == {"dpo"} and of["sft.py"].left["trainer"] == {"sft"}
    put(tmp_path, {"run.sh": "accelerate launch dpo.py --config dpo/two.yaml --bf16 true\n", "free.yaml": plain})
    assert "trainer" not in read_recipes([folder])[1]["free.yaml"].left, "which of two trainers it is for, nobody says"
    put(tmp_path, {"own.py": OWN_TRAINER, "g.yaml": "num_generations: 8\noutput_dir: o\n"})
    assert "another" in read_recipes([folder])[1]["g.yaml"].left["trainer"], "it may be for the project's own"


PACKAGE = {
    "p/run.py": "from p.train import train\nif __name__ == '__main__':\n    train()\n",
    "p/train.py": "from .own import MyTrainer\ndef train(): MyTrainer(LoraConfig(r=8), args=parsed).train()\n",
    "p/own/__init__.py": "from .trainer import MyTrainer\n",
    "p/own/trainer.py": "from transformers import Trainer\nclass MyTrainer(Trainer): pass\n",
    "p/loop.py": "from accelerate import Accelerator\nAccelerator().prepare(model)\n",
}


@pytest.mark.parametrize(
    ("program", "trainer"),
    [
        ("p/run.py", {"trainer", "another"}),
        ("-m p.train", {"trainer", "another"}),
        ("p/loop.py", set()),
        ("elsewhere/run.py", {"another", "grpo", "rloo", "gold", "iw_opd", "sdft", "sdpo"}),
    ],
)
def test_the_trainer_of_a_command_is_what_its_program_makes(tmp_path, program, trainer):
    """Breaks when a trainer's class in another file isn't followed, or a flag of somebody's own is taken for TRL's."""
    run = f"torchrun {program} --num_generations 8 --gradient_checkpointing true --output_dir o --peft_enable false\n"
    files = PACKAGE | {"run.sh": run, "requirements.txt": "transformers==4.49.0\ndeepspeed==0.16.4\n"}
    project, of = read_recipes([put(tmp_path, files)])
    left = of.get("run.sh:1", project).left
    assert left.get("trainer", set()) == trainer
    known = {"checkpointing", "adapter", *(() if "loop" in program else ("own max_grad_norm",))}
    assert {*left} - {"trainer"} == known and left["adapter"] == {"no"}
    assert len(left["checkpointing"]) == (1 if len(trainer) == 2 else 2)


def test_what_belongs_to_one_part_of_a_project_is_not_said_of_another(tmp_path):
    """Breaks when an engine or release of one script, or of another folder, is told of all."""
    named = "deepspeed: z.json\n" + REENTRANT
    files = {"a/z.json": '{"zero_optimization": {"stage": 3}}', "a/one.yaml": named, "a/two.yaml": REENTRANT}
    files |= {"a/requirements.txt": "trl==0.15.2\n", "b/requirements.txt": "trl==1.0.0\n", "b/x.yaml": REENTRANT}
    files |= {"b/requirements_x.txt": "peft==0.14.0\n", "b/requirements-y.txt": "peft==0.15.0\n", "b/acc.yaml": ZERO2}
    project, of = read_recipes([put(tmp_path, files)])
    assert "strategy" not in of["a/two.yaml"].left and of["b/x.yaml"].left["strategy"] == {"zero2", "zero2-small"}
    assert [of[name].versions["trl"].text for name in ("a/two.yaml", "b/x.yaml")] == ["==0.15.2", "==1.0.0"]
    assert "peft" not in of["b/x.yaml"].versions and any("peft differs between" in each for each in project.notes)


def test_equal_recipes_cost_one_answer(tmp_path, monkeypatch):
    """Breaks when a folder of 250 recipes takes as long as 250 projects."""
    asked = []
    monkeypatch.setattr(command, "findings", lambda project: asked.append(project) or [])
    folder = put(tmp_path, {f"{number}.yaml": REENTRANT for number in range(250)})
    assert len(audited(folder).recipes) == 250 and len(asked) == 1


def test_every_default_has_its_releases_and_its_line_upstream():
    for framework in defaults.frameworks():
        for default in framework.defaults:
            ranges.parse(default.versions)
            assert re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/blob/v[\w.]+/\S+#L\d+", default.source)
            assert default.values <= {"reentrant", "non-reentrant", "off", "yes", "no", "1.0", "fsdp1-full", "fsdp2"}


LLAMA = "stage: sft\nfinetuning_type: lora\noutput_dir: o\ndeepspeed: z3.json\ntemplate: x\n"
AXOLOTL = "base_model: x\ndatasets: []\nadapter: lora\ngradient_checkpointing: true\ndeepspeed: z3.json\n"
TRL = "trainer: sft\noutput_dir: o\nuse_peft: false\ngradient_checkpointing: true\n"
ADAPTER = TRL.replace("false", "true") + "deepspeed: z3.json\n"
SWIFT = "swift sft --train_type lora --deepspeed zero3 --output_dir o\n"
SWIFT_DDP = "accelerate launch --multi_gpu swift/cli/sft.py --train_type lora --output_dir o --bf16 true\n"
SETS = "Trainer(m, TrainingArguments('o', gradient_checkpointing=True))\n"
SETS += "if args.{}: args.gradient_checkpointing_kwargs = {{'use_reentrant': False}}\n"
OPENRLHF = "deepspeed --module openrlhf.cli.train_sft --zero_stage 3 --bf16 --max_epochs 1\n"


@pytest.mark.parametrize(
    ("name", "text", "pinned", "modes"),
    [
        ("t.yaml", TRL, "transformers==5.0.0", "non-reentrant"),
        ("t.yaml", TRL, "transformers==5.23.0\ntrl==0.11.4", "non-reentrant"),
        ("t.yaml", TRL, "transformers==4.57.6\ntrl==0.26.2", "reentrant"),
        ("t.yaml", TRL, "transformers==4.57.6\ntrl==0.27.1", "non-reentrant"),
        ("t.yaml", TRL, "transformers==4.57.6\ntrl==0.27.0", "non-reentrant reentrant"),
        ("t.yaml", TRL, "transformers==4.49.0", "non-reentrant reentrant"),
        ("t.yaml", TRL, "transformers>=5.1", "non-reentrant"),
        ("t.yaml", TRL, "peft==0.14.0", "non-reentrant reentrant"),
        ("t.yaml", TRL + "gradient_checkpointing_kwargs: {use_reentrant: true}\n", "transformers==5.0.0", "reentrant"),
        ("t.yaml", ADAPTER, pins(), "non-reentrant reentrant"),  # newer TRL makes it reentrant under ZeRO-3
        ("a.yaml", AXOLOTL, "transformers==5.0.0", "reentrant"),
        ("l.yaml", LLAMA, "", "reentrant"),
        ("l.yaml", LLAMA + "disable_gradient_checkpointing: true\n", "", "off"),
        ("l.yaml", LLAMA + "use_reentrant_gc: false\n", "", "off non-reentrant"),
        ("l.yaml", LLAMA, "llamafactory==0.5.0", ""),
        ("a.yaml", AXOLOTL + "rl: dpo\n", "", "non-reentrant"),
        ("a.yaml", AXOLOTL, "axolotl==0.4.0", "non-reentrant reentrant"),
        ("a.yaml", AXOLOTL + "unfrozen_parameters: [x]\n", "", "non-reentrant reentrant"),
        ("a.yaml", AXOLOTL + "gradient_checkpointing_kwargs: {use_reentrant: false}\n", "", "non-reentrant"),
        ("s.sh", SWIFT, "", "reentrant"),
        ("s.sh", SWIFT.replace("lora", "lora --gradient_checkpointing true"), "", "reentrant"),
        ("s.sh", SWIFT.replace("lora", "lora --gradient_checkpointing $G"), "", ""),
        ("s.sh", SWIFT_DDP, "ms-swift==3.5.0", "reentrant"),
        ("s.sh", SWIFT_DDP, "ms-swift==3.8.0", "non-reentrant"),
        ("o.sh", OPENRLHF, "", "non-reentrant off"),
        ("t.py", SETS.format("gradient_checkpointing"), "transformers==4.49.0", "non-reentrant"),
        ("t.py", SETS.format("lora"), "transformers==4.49.0", "non-reentrant reentrant"),
    ],
)
def test_the_mode_that_a_framework_sets(tmp_path, name, text, pinned, modes):
    """Breaks when both modes are left open though the pins say which it is, or a framework's own is not known."""
    named = {"z3.json": '{"zero_optimization": {"stage": 3}}'} if "z3.json" in text else {}
    project = written(tmp_path, {name: text, **named, "requirements.txt": pinned or "deepspeed==0.16.4"})
    assert project.left.get("checkpointing", frozenset()) == {*modes.split()}


@pytest.mark.parametrize(
    ("pins", "values"),
    [("accelerate==0.29.3", {"yes"}), ("accelerate==0.30.0", {"no"}), ("accelerate>=0.27", None), ("", None)],
)
def test_accelerate_writes_the_norm_only_since_0_30(tmp_path, pins, values):
    files = {"a.yaml": ZERO2, "requirements.txt": f"trl\n{pins}\n"}
    assert written(tmp_path, files).left.get("no gradient_clipping") == values
    stated = {"a.yaml": ZERO2.replace("2}", "2, gradient_clipping: 1.0}")}
    assert written(tmp_path, stated).left["no gradient_clipping"] == {"no"}


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
    files["setup.py"] = f"setup(install_requires=['deepspeed=={deepspeed}'])\n"
    match = match_of(audited(put(tmp_path, files)), "deepspeed_gradient_clipping_omitted")
    assert (match and match.word) == word


OWN = "import transformers\nclass {0}(transformers.TrainingArguments):\n    x: int = 0\n"
PARSES = "parsed = HfArgumentParser((Data, {0})).parse_args_into_dataclasses()\ntransformers.Trainer(m, parsed)\n"
PLAIN = PARSES.format("transformers.TrainingArguments")
ZERO2_RUN = "deepspeed train.py {} --deepspeed z.json --bf16 True"


@pytest.mark.parametrize(
    ("code", "run", "word"),
    [
        (OWN.format("TrainingArguments") + PARSES.format("TrainingArguments"), ZERO2_RUN, "likely"),
        (PARSES.format("transformers.Seq2SeqTrainingArguments"), ZERO2_RUN, "likely"),
        ("from own import Mine\n" + PARSES.format("Mine"), ZERO2_RUN, "likely"),
        ("from own import Clips\n" + PARSES.format("Clips"), ZERO2_RUN, "possible"),
        ("ArgumentParser()\ntransformers.Trainer(m)\n", ZERO2_RUN, "possible"),
        (PLAIN, f"{ZERO2_RUN} --max_grad_norm 0.0", None),
        (PLAIN, ZERO2_RUN.format("not-here.yaml"), "possible"),
        (PLAIN, f"{ZERO2_RUN} --config $CONFIG", "possible"),
        ("", "trl sft --deepspeed z.json --bf16 True", "certain"),
    ],
)
def test_a_parser_of_arguments_has_transformers_defaults(tmp_path, code, run, word):
    """Breaks when a command line without any setting of transformers' own has no defaults, or a class of one's own has
    those of transformers where it sets others."""
    files = {"own.py": OWN.format("Mine") + "class Clips(Mine):\n    max_grad_norm: float = 0.0\n", "train.py": code}
    files |= {"run.sh": run.format(""), "requirements.txt": OLD, "z.json": '{"zero_optimization": {"stage": 2}}'}
    match = match_of(audited(put(tmp_path, files)), "deepspeed_gradient_clipping_omitted")
    assert (match and match.word) == word


def test_ids_are_short_and_of_one_failure_each():
    ids = [failure.id for failure in failures().values()]
    assert len({*ids}) == len(ids) and all(re.fullmatch(r"F[0-9a-f]{4}", each) for each in ids)
    assert failures()["zero3_dummy_loss"].id == "F1312", "an id stays as long as its failure's name does"


def test_a_project_says_what_to_ignore(tmp_path):
    """In pyproject.toml for all of it, or in a file for what that file takes part in."""

    def audited_with(name, text):
        return audited(put(tmp_path, {**GRPO, "pyproject.toml": "", name: text}))

    settings = '[tool.faultline.audit]\nignore = ["{}"]\n'
    for name in (NO_GRAD, failures()[NO_GRAD].id):
        in_file = audited_with("grpo.yaml", f"{REENTRANT}# faultline: ignore[{name}]\n")
        in_settings = audited_with("pyproject.toml", settings.format(name))
        assert not match_of(in_file, NO_GRAD) and not match_of(in_settings, NO_GRAD)
        assert f"ignored: {name}" in str(in_settings)
    two = {"env/requirements.txt": OLD, "recipes/a.yaml": REENTRANT, "recipes/b.yaml": REENTRANT}
    two["recipes/a.yaml"] += f"# faultline: ignore[{NO_GRAD}]\n"
    other = match_of(audited(put(tmp_path / "two", two)), NO_GRAD)
    assert other.recipes == ("recipes/b.yaml",) and other.project.versions["trl"].pinned, "it holds for others"
    unknown = audited_with("pyproject.toml", settings.format("F0000"))
    assert unknown.certain == (NO_GRAD,) and "no failure is called F0000" in str(unknown)
    assert "ignored: " not in str(unknown)
    misplaced = audited_with("pyproject.toml", settings.replace(".audit", "").format(NO_GRAD))
    assert "pyproject.toml:2: `ignore` is not read here: write it below [tool.faultline.audit]" in str(misplaced)


def test_nobody_is_asked_for_what_is_stated(tmp_path):
    """Breaks when what the files state, and leaves more than one, is asked for, or what has no part."""
    files = {"run.yaml": "distributed_type: MULTI_GPU\nmixed_precision: bf16\n", "requirements.txt": pins()}
    files |= {"train.yaml": "output_dir: x\n", "run.sh": "accelerate launch --config_file run.yaml -m trl.scripts.sft"}
    files["run.sh"] += " --config train.yaml\n"
    assert audited(put(tmp_path, files)).as_json()["say"] == ["gradient_accumulation_steps", "gradient_checkpointing"]
    files = {"run.sh": ZERO2_RUN.format(""), "z.json": '{"zero_optimization": {"stage": 2}}', "train.py": PLAIN}
    for package in ("torch", "deepspeed"):  # one of an old time, and one that was not measured with the others
        files["requirements.txt"] = pins(**{package: "2.6.0" if package == "torch" else "0.17.0"}).replace("trl", "x")
        answer = audited(put(tmp_path / package, files)).as_json()
        about = [each["about"] for finding in answer["findings"] for each in finding["cases"][0]["open"]]
        assert ["trl"] not in about and "trl" not in answer["unknown"]
        assert not {"the version of trl", "beta"} & {*answer["say"]}, "as no trainer of TRL's is there"
