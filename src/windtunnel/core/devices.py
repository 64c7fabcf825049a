"""Make an accelerator give the same bits for the same work."""

from __future__ import annotations

import os

import torch


def make_deterministic(device: torch.device) -> None:
    """Hold CUDA to deterministic algorithms in full float32, in this process from here on; other devices have no such switches.

    Before its first work: cuBLAS reads its workspace once. An operation that has no deterministic form warns and is done all
    the same: a model of the user's may need it. Source: PyTorch's notes on reproducibility.
    """
    if device.type != "cuda":
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
