"""Variables that ranks need before the first import of a library."""

from __future__ import annotations


def environment(device: str = "cpu") -> dict[str, str]:
    """Variables that must be set before the first import of a library under test.

    For the CPU they hide GPUs that are there: libraries would move to them unasked.
    """
    hidden = {"CUDA_VISIBLE_DEVICES": "", "DS_ACCELERATOR": "cpu"} if device == "cpu" else {}
    return hidden | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_OFFLINE": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "WANDB_MODE": "disabled",
        # pyarrow's allocator would start a thread, and only a single-threaded process forks safely.
        "JE_ARROW_MALLOC_CONF": "background_thread:false",
        # c10d asks for the name of each peer's address, which no hosts file has (::ffff:127.0.0.1). No try, no
        # question to a name server: cells stay off the network, and a slow server holds up no rank.
        "RES_OPTIONS": "attempts:0",
        "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo",
        # Ask NVML, not CUDA, whether there is a GPU: initialised CUDA does not survive a fork.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "1",
    }
