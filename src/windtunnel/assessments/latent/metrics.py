"""The metrics, from what is in robustness_data.pt and from nothing else.

LGA, LRA: accuracy on generated and on reconstructed images. LLNA: under latent noise. LLAR: the minimum scaled norm of a
class-changing change of one code. LAGS, LARS: its mean. LAGA, LARA: the share without one within rho.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy.stats import bootstrap
from torch import Tensor

from windtunnel.assessments.latent.noise import scaled_norm
from windtunnel.core.contracts import Json
from windtunnel.core.distances import within
from windtunnel.core.statistics import BinomialRate, binomial_rate, median_metric

RESAMPLES = 1000
QUANTILES = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}

# The side of the metrics: how its accuracy, severity and bounded accuracy are called.
NAMES = {"reconstruction": ("lra", "lars", "lara"), "generation": ("lga", "lags", "laga")}


def accuracy(predictions: Tensor, classes: Tensor) -> BinomialRate:
    """Share of predictions (N,) that equal `classes` (N,), with its Wilson interval."""
    return binomial_rate(int((predictions == classes).sum()), len(classes))


def unbroken(distances: Tensor, rho: float) -> BinomialRate:
    """Share of codes with no change of class found within `rho`, with its Wilson interval."""
    return binomial_rate(int((~within(distances, rho)).sum()), len(distances))


def severity(name: str, distances: Tensor) -> dict[str, Json]:
    """Mean and median minimum perturbation of distances (N,), inf for those not found.

    The mean is over those found, `{name}_not_found` says how many were not; they count as infinite in the median,
    which is left out where it is infinite. Bootstrap intervals of 95 %.
    """
    finite = distances[distances.isfinite()].double().numpy()
    block: dict[str, Json] = {f"{name}_not_found": len(distances) - len(finite)}
    if not len(finite):
        return block
    block |= {name: float(finite.mean()), f"{name}_std": float(finite.std()), **_interval(name, finite, np.mean)}
    every = distances.double().numpy()
    block |= median_metric(f"{name}_median", every.tolist())
    if f"{name}_median" in block:
        block |= _interval(f"{name}_median", every, np.median)
    return block


def noise_accuracy(name: str, noisy: Tensor, classes: Tensor) -> dict[str, Json]:
    """Mean accuracy (N,) under noise of predictions (N, ..., D), with the bootstrap interval over samples."""
    per_sample = (noisy == classes.view(-1, *(1 for _ in noisy.shape[1:]))).double().flatten(1).mean(1).numpy()
    return {name: float(per_sample.mean()), **_interval(name, per_sample, np.mean)} if len(per_sample) else {}


def side_metrics(side: str, data: Mapping[str, Tensor], classes: Tensor, rho: float) -> dict[str, Json]:
    """Every metric of one side (reconstruction or generation) of one classifier; see `examine` for the tensors."""
    local, mean_minimum, bounded = NAMES[side]
    curve = [noise_accuracy("llna", at_level, classes) for at_level in data["noisy_predictions"].unbind(1)]
    return {
        **({} if side == "generation" else accuracy(data["predictions"], classes).metrics(local)),
        **noise_accuracy(f"llna_{side}", data["noisy_predictions"], classes),
        f"llna_{side}_curve": [row["llna"] for row in curve],
        f"llna_{side}_curve_ci_low": [row.get("llna_ci_low") for row in curve],
        f"llna_{side}_curve_ci_high": [row.get("llna_ci_high") for row in curve],
        **severity(mean_minimum, data["distances"]),
        **unbroken(data["distances"], rho).metrics(bounded),
    }


def at_epsilon(epsilon: float) -> str:
    """Return the prefix of the tensors at a decay epsilon that is not the first: `epsilon_1.`."""
    return f"epsilon_{epsilon:g}."


def value_metrics(
    side: str, data: Mapping[str, Tensor], epsilons: Sequence[float], rhos: Sequence[float]
) -> dict[str, Json]:
    """Severity and bounded accuracy of one side at each of several values; empty where there is one of each.

    `lars_epsilon_1`, `lara_rho_0.1`, `lara_epsilon_1_rho_0.1`: the plain names are those of the first values.
    """
    _, mean_minimum, bounded = NAMES[side]
    block: dict[str, Json] = {}
    for index, epsilon in enumerate(epsilons):
        distances = data[f"{at_epsilon(epsilon) if index else ''}distances"]
        suffix = f"_epsilon_{epsilon:g}" if len(epsilons) > 1 else ""
        block |= severity(f"{mean_minimum}{suffix}", distances) if suffix else {}
        for rho in rhos:
            within_rho = f"{suffix}_rho_{rho:g}" if len(rhos) > 1 else suffix
            block |= unbroken(distances, rho).metrics(f"{bounded}{within_rho}") if within_rho else {}
    return block


def conventional_metrics(
    data: Mapping[str, Tensor], classes: Tensor, bounds: Mapping[str, Sequence[float]]
) -> dict[str, Json]:
    """Adversarial frequency and severity under each norm of `bounds`, and accuracy under Gaussian noise.

    The frequency within the first bound has the plain name; of several, each is there as `..._bound_0.1` too.
    """
    block: dict[str, Json] = {}
    for norm, values in bounds.items():
        named = {"": values[0], **({f"_bound_{b:g}": b for b in values} if len(values) > 1 else {})}
        for suffix, bound in named.items():
            broken = int(within(data[norm], bound).sum())
            block |= binomial_rate(broken, len(classes)).metrics(f"adversarial_frequency_{norm}{suffix}")
        block |= severity(f"adversarial_severity_{norm}", data[norm])
    return {**block, **noise_accuracy("noise_accuracy", data["noise_predictions"], classes)}


def distributions(latents: Tensor, data: Mapping[str, Tensor], shrinkage: float) -> dict[str, Json]:
    """Sizes of what was found: in latent space, of the code's own length, and of the image against the decayed one."""
    return {key: summary(values) for key, values in changes(latents, data, shrinkage).items()}


def changes(latents: Tensor, data: Mapping[str, Tensor], shrinkage: float) -> dict[str, Tensor]:
    """Per found example, (F,): scaled ||dl||, ||l + dl|| - ||l|| and ||dx||_2, and ||dx||_1 / n, l the decayed code."""
    is_finite = data["distances"].isfinite()
    centres, perturbed = latents[is_finite] * shrinkage, data["perturbed_latents"][is_finite]
    moved = (data["perturbed_inputs"] - data["decayed_inputs"])[is_finite].flatten(1)
    return {
        "latent_change": data["distances"][is_finite],
        "latent_norm_change": scaled_norm(perturbed) - scaled_norm(centres),
        "image_change_l2": scaled_norm(moved),
        "image_change_l1": moved.abs().mean(1),
    }


def mean_with_interval(name: str, values: Tensor) -> dict[str, Json]:
    """Mean of values (N,) with its bootstrap interval; nothing where there are none."""
    numbers = values.double().numpy()
    return {name: float(numbers.mean()), **_interval(name, numbers, np.mean)} if len(numbers) else {}


def summary(values: Tensor) -> dict[str, Json]:
    """Return the number, mean, standard deviation and quantiles of values (N,); the number alone where there are none."""
    block: dict[str, Json] = {"n": len(values)}
    if len(values):
        numbers = values.double()
        block |= {"mean": float(numbers.mean()), "std": float(numbers.std(correction=0))}
        block |= {name: float(numbers.quantile(q)) for name, q in QUANTILES.items()}
    return block


def per_class(
    names: Sequence[str],
    sides: Mapping[str, tuple[Mapping[str, Tensor], Tensor]],
    codes: tuple[Tensor, Tensor],
    rho: float,
) -> list[Json]:
    """Return a row per class: `sides` maps a side to (tensors, classes); `codes` are (predictions, classes) of LGA."""
    rows: list[Json] = []
    for label, name in enumerate(names):
        row: dict[str, Json] = {"class": name}
        mine = codes[1] == label
        if mine.any():
            row |= {"n_codes": int(mine.sum()), **accuracy(codes[0][mine], codes[1][mine]).metrics("lga")}
        for side, (data, classes) in sides.items():
            mine = classes == label
            if mine.any():
                selected = {key: data[key][mine] for key in ("predictions", "noisy_predictions", "distances")}
                row |= {f"n_{side}": int(mine.sum()), **side_metrics(side, selected, classes[mine], rho)}
        rows.append(row)
    return rows


def _interval(name: str, values: np.ndarray, statistic: Callable[..., object]) -> dict[str, Json]:
    """Percentile bootstrap, 95 %; none for fewer than two values or for infinite ends."""
    if len(values) < 2:
        return {}
    rng = np.random.default_rng(0)
    with np.errstate(invalid="ignore"):
        result = bootstrap((values,), statistic, n_resamples=RESAMPLES, method="percentile", rng=rng)
    low, high = (float(end) for end in result.confidence_interval)
    return {f"{name}_ci_low": low, f"{name}_ci_high": high} if np.isfinite([low, high]).all() else {}
