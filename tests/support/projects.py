"""Projects as somebody has them: the files of one that has a failure, and what is known of a folder."""

from faultline import strategies
from faultline.audit.contents import read_files
from faultline.audit.project import project_of
from faultline.observations import measured

GRPO = {
    "requirements.txt": "torch==2.13.0\ntransformers==4.49.0\ntrl==0.15.2\npeft==0.14.0\naccelerate==1.4.0\n"
    "deepspeed==0.16.4\n",
    "accelerate.yaml": "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\ndeepspeed_config:\n"
    "  zero_stage: 2\n  offload_optimizer_device: none\nmixed_precision: bf16\nnum_processes: 8\n",
    "grpo.yaml": "model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct\nreward_funcs: [accuracy]\nnum_generations: 8\n"
    "use_peft: true\ngradient_checkpointing: true\ngradient_checkpointing_kwargs:\n  use_reentrant: true\n",
}
"""A project that has grpo_lora_no_grad for certain."""


def pins(**others):
    """The requirements that pin today's stack, some packages at other versions."""
    return "".join(f"{name}=={version}\n" for name, version in (measured.pinned() | others).items())


def put(folder, files):
    """Write files by their names below a folder; gives its path."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return str(folder)


def read_project(paths, environment=False, python=""):
    """What all files state together, as one set-up."""
    return project_of(*read_files(paths, environment, python))


def written(folder, files):
    """What is known of a folder with these files."""
    return read_project([put(folder, files)])


def family(prefix):
    """The strategies whose names begin so."""
    return {name for name in strategies.names() if name.startswith(prefix)}
