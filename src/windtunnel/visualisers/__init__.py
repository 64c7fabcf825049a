"""All visualisers: importing this package registers them."""

from windtunnel.visualisers import attacks, clean, sandwich, sweeps, verification

__all__ = ["attacks", "clean", "sandwich", "sweeps", "verification"]
