"""Set the number of threads of a process: one, unless the user says otherwise."""

import os
import sys

VARIABLE = "OMP_NUM_THREADS"


def compute_with_one_thread() -> None:
    """Before NumPy or torch is imported, which read the variable once; a number that the user has set stays.

    Threads share the terms of a sum among them, and the order of its terms decides its last bits: with as many threads as there are
    processors, another machine would give other bytes. No library has a switch that would do: MKL's (`MKL_CBWR=AVX2,STRICT`)
    holds for matrix products on Intel's processors, not for convolutions, gradients of weights or sums of large tensors
    (measured: docs/benchmarks/threads.md). Several processors are for the executor, whose workers have one thread each.
    """
    os.environ.setdefault(VARIABLE, "1")


def compute_with_one_torch_thread() -> None:
    """Let torch, where it is imported, compute with one thread: sums differ in their last bits with the number of threads."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
