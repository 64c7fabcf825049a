"""Schemas of `generators` and of an entry of `latent`."""

from __future__ import annotations

from windtunnel.params.entry import Block, Entry


class Generators(Block):
    """The generative models that latent-space assessments use."""


class LatentEntry(Entry):
    """Latent-space metrics (Buzhinsky, Nerinovsky, Tripakis 2021)."""

    library: str = "windtunnel"
    algorithm: str = "latent"
