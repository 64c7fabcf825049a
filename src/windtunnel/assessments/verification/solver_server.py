"""Preloaded by the server that solver processes fork from: what they all need, imported once."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # maraboupy regrets the absence of tensorflow
    import maraboupy.Marabou

import windtunnel.assessments.verification.solver_process

__all__ = ["maraboupy", "windtunnel"]
