"""Train a face detector on scikit-image's LFW subset and write weights.pt and test.npz; needs nothing from a network."""

from __future__ import annotations

import argparse

import numpy as np
import torch
from network import network
from skimage import data
from torch.nn.functional import binary_cross_entropy_with_logits


def main() -> None:
    """Train on half of the 200 pictures (100 faces, 100 other things), keep the other half for the assessment."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100, help="pictures to assess, at most 100")
    n_samples = parser.parse_args().samples
    pictures = data.lfw_subset().astype(np.float32)[:, None]  # (200, 1, 25, 25) in [0, 1], the faces first
    labels = np.repeat([1, 0], 100)
    order = np.random.default_rng(0).permutation(200)
    train, test = order[:100], order[100 : 100 + n_samples]
    torch.manual_seed(0)
    x, y = torch.from_numpy(pictures[train]), torch.from_numpy(labels[train]).float()
    model = network().train()
    optimiser = torch.optim.Adam(model.parameters(), 3e-3, weight_decay=1e-4)
    for _ in range(60):
        optimiser.zero_grad()
        binary_cross_entropy_with_logits(model(torch.cat([x, x.flip(3)])).squeeze(1), torch.cat([y, y])).backward()
        optimiser.step()
    torch.save(model.state_dict(), "weights.pt")
    names = np.array([f"lfw-{i:03d}" for i in test])
    np.savez("test.npz", x=pictures[test], y=labels[test], ids=names)
    print(f"weights.pt, and test.npz with {len(test)} pictures")


if __name__ == "__main__":
    main()
