"""Epsilons as people write them: 8/255 stays 8/255."""

from __future__ import annotations

_NBSP = "\N{NO-BREAK SPACE}"


def budget_text(norm: str, epsilon: float) -> str:
    """`Linf ≤ 0.06` or `rotation ≤ 10°`, on one line."""
    from windtunnel.core.transformations import transformation_of

    if transformation := transformation_of(norm):
        return transformation.words(epsilon)
    return f"{norm}{_NBSP}≤{_NBSP}{epsilon_text(epsilon)}"


def place_text(norm: str, epsilon: float) -> str:
    """`Linf 8/255` or `rotation ≤ 10°`: a budget within a sentence."""
    from windtunnel.core.transformations import transformation_of

    return budget_text(norm, epsilon) if transformation_of(norm) else f"{norm} {epsilon_text(epsilon)}"


def epsilon_text(value: float) -> str:
    """`0.06`, or `8/255` for a whole or half number of grey levels that no short decimal is; else four digits."""
    plain, levels = f"{value:.4g}", value * 255
    if abs(float(plain) - value) <= 1e-9 * max(1.0, value) or not value:
        return plain
    halves = round(2 * levels) / 2
    # Params hold doubles, tensors on disk floats: 1e-5 grey levels is beyond the rounding of both.
    return f"{halves:g}/255" if 0 < halves <= 64 and abs(halves - levels) < 1e-5 else plain
