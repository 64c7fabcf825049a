"""All visualisers: importing this package registers them."""

from windtunnel.visualisers import sandwich, sweeps

__all__ = ["sandwich", "sweeps"]
