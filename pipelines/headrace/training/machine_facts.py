"""Processor, GPUs and libraries of linear algebra of this process's node, for comparisons."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

from headrace.steps.node_facts import cpu_model

_BUILT_WITH = re.compile(
    r"Math Kernel Library Version [\w.]+|MKL-DNN v[\w.]+|(?:BLAS|LAPACK)_INFO=\w+"
)


def machine_facts() -> dict[str, str]:
    """Return CPU and GPUs, and version, kernel and threads of BLAS, LAPACK, cuBLAS and cuDNN."""
    import numpy as np
    import torch
    from threadpoolctl import threadpool_info

    built = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    used = (*_BUILT_WITH.findall(torch.__config__.show()), torch.backends.cpu.get_cpu_capability())
    gpus = map(torch.cuda.get_device_name, range(torch.cuda.device_count()))
    found = {
        "CPU": cpu_model(),
        "GPUs": ", ".join(gpus),
        "NumPy": f"{built.get('name')} {built.get('version')}",
        "PyTorch": f"{', '.join(used)}, {torch.get_num_threads()} threads",
    }
    for each in threadpool_info():
        if each["user_api"] == "blas":
            of = Path(each["filepath"]).parent.name.removesuffix(".libs")
            kernel = f"kernel {each.get('architecture')}, {each['num_threads']} threads"
            found[f"{each['internal_api']} of {of}"] = f"{each['version']}, {kernel}"
    if torch.version.cuda is not None:
        found["cuBLAS"] = cublas_version(torch.version.cuda.partition(".")[0])
        found["cuDNN"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return found


def cublas_version(cuda_major: str) -> str:
    """Return the version of cuBLAS (https://docs.nvidia.com/cuda/cublas/#cublasgetproperty)."""
    parts = [ctypes.c_int() for _ in range(3)]
    try:
        library = ctypes.CDLL(f"libcublas.so.{cuda_major}")
    except OSError:
        return "not found"
    for which, part in enumerate(parts):
        library.cublasGetProperty(which, ctypes.byref(part))
    return ".".join(str(part.value) for part in parts)
