"""All visualisers: importing this package registers them."""

from windtunnel.visualisers import clean, sandwich, sweeps

__all__ = ["clean", "sandwich", "sweeps"]
