"""All visualisers: importing this package registers them."""

from windtunnel.visualisers import (
    attacks,
    clean,
    corruptions,
    latent,
    queries,
    sandwich,
    security,
    sweeps,
    verification,
)

__all__ = ["attacks", "clean", "corruptions", "latent", "queries", "sandwich", "security", "sweeps", "verification"]
