"""Runs on disk with planted outcomes."""

from pathlib import Path

import torch

from tests.made import content
from windtunnel.records.artifacts import save_tensors
from windtunnel.records.files import write_json


def write_run(root: Path, verdicts, *, shift=0.0, steps=10, names=None, targets=None, sweep=None, epsilon=None) -> Path:
    """A project with one assessment `pgd`: the last sample is misclassified; `sweep`: (epsilons, predictions (E, N))."""
    n = len(verdicts)
    folder = root / "reports" / "robustness" / "pgd"
    folder.mkdir(parents=True)
    images = torch.linspace(0, 1, n * 4).reshape(n, 1, 2, 2)
    data = {
        "clean_inputs": images + shift,
        "targets": torch.zeros(n, dtype=torch.int64) if targets is None else torch.tensor(targets),
        "clean_predictions": torch.tensor([0] * (n - 1) + [1]),
        "verdicts": torch.tensor(verdicts),
        "perturbed_inputs": images.flip(0),
        "perturbed_predictions": torch.tensor([1 if v == 1 else 0 for v in verdicts]),
    }
    if sweep is not None:
        data |= {"epsilons": torch.tensor(sweep[0]), "sweep_predictions": torch.tensor(sweep[1])}
    save_tensors(data, folder / "robustness_data.pt")
    kwargs = {"sample_names": names or [f"s{i}" for i in range(n)], "class_names": ["zero", "one"]}
    metrics = {"n_samples": n}
    semantics = {"perturbation": {"norm": "Linf", "epsilon": epsilon or 0.1}}
    write_json(
        content(name="pgd", kwargs=kwargs, semantics=semantics, metrics=metrics, call_kwargs={"steps": steps}),
        folder / "metadata.json",
    )
    held = sum(v != 1 for v in verdicts[:-1]) / n
    write_json({"pgd": {"adversarial_accuracy": held}, "clean": {"accuracy": (n - 1) / n}},
               root / "reports" / "metrics.json")  # fmt: skip
    (root / "params.yaml").write_text(
        f"budget: {{norm: Linf, epsilon: {epsilon or 0.1}}}\nattacks: {{pgd: {{steps: {steps}}}}}\n"
    )
    return root
