"""Bounds of the inputs of every activation, layer after layer: what all later bounds stand on."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from windtunnel.assessments.verification.branch_and_bound.activations import Observed, Smooth
from windtunnel.assessments.verification.branch_and_bound.grouped_crown import bound_together
from windtunnel.assessments.verification.branch_and_bound.maxpool_bounds import difference_bounds, largest
from windtunnel.assessments.verification.branch_and_bound.network import Network
from windtunnel.assessments.verification.branch_and_bound.optimise import improved
from windtunnel.assessments.verification.branch_and_bound.propagation import Bounded
from windtunnel.assessments.verification.branch_and_bound.receptive_fields import groups_of
from windtunnel.assessments.verification.regions import BallRegions


def bound_network(
    network: Network, region: BallRegions, rows: int, initial_bounds: Sequence[tuple[Tensor, Tensor]] = ()
) -> Bounded:
    """CROWN bounds of every layer; in float64, `rows` at a time.

    known: of each layer bounds (low, up), (n, size), that hold already, as of a larger region: the tighter of both count.
    """
    bounded = Bounded(network, region)
    for j, layer in enumerate(network.layers):
        if layer.decides_windows or layer.follows_windows:
            bounded.add(*(difference_bounds if layer.decides_windows else largest)(bounded, j))
        else:
            bounded.add(*_bounds_of_layer(bounded, j, rows))
        if initial_bounds:
            bounded.tighten(j, *initial_bounds[j])
    return bounded


def _bounds_of_layer(bounded: Bounded, j: int, rows: int) -> tuple[Tensor, Tensor]:
    network, n, size = bounded.network, len(bounded.region), bounded.network.layers[j].size
    ends = [torch.full((n, size), -torch.inf, dtype=torch.float64, device=network.device) for _ in (0, 1)]
    if network.layers[j].direct and not groups_of(network, j, rows):
        _exact(bounded, j, ends, rows)
    else:
        every = torch.ones(2, n, size, dtype=torch.bool, device=network.device)
        _improve(bounded, j, ends, every, 0, rows, 0)
    return ends[0], -ends[1]


def improve_network(
    bounded: Bounded,
    which: list[Tensor],
    iterations: int,
    rows: int,
    memory: int,
    expired: Callable[[], bool],
    *,
    others: bool = True,
) -> None:
    """Alpha-CROWN for the bounds in `which`, (2, n, size) bool of each layer; CROWN again for the others, where they are wanted.

    In the order of layers. Ends early when `expired`; all bounds hold at any time.
    """
    for j in range(len(bounded.network.layers)):
        if expired():
            return
        improve_layer(bounded, j, which[j], iterations, rows, memory, others=others)


def improve_layer(
    bounded: Bounded, j: int, which: Tensor, iterations: int, rows: int, memory: int, *, others: bool = True
) -> None:
    """Raise the bounds of layer j by what is known of the layers below; see `improve_network`."""
    layer = bounded.network.layers[j]
    if layer.direct:
        return
    if layer.decides_windows:
        bounded.tighten(j, *difference_bounds(bounded, j))
        return
    ends = [bounded.low[j].clone(), -bounded.up[j]]
    smooth = isinstance(layer.activation, Smooth)
    open_ = torch.ones_like(ends[0], dtype=torch.bool) if smooth else (ends[0] < 0) & (ends[1] < 0)
    if others and not isinstance(layer.activation, Observed):
        _improve(bounded, j, ends, open_ & ~which, 0, rows, 0)
    _improve(bounded, j, ends, open_ & which, iterations, rows, memory)
    bounded.tighten(j, ends[0], -ends[1])


def unit_rows(which: Tensor, rows: int) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor]]:
    """(spec, sample, unit, side) of the bounds in `which` (2, n, size) bool, z from below and -z, `rows` at a time."""
    side, sample, unit = which.nonzero().unbind(1)
    for part in torch.arange(len(unit), device=which.device).split(rows) if len(unit) else ():
        spec = torch.zeros(len(part), which.shape[2], device=which.device)
        spec[torch.arange(len(part), device=which.device), unit[part]] = 1.0 - 2.0 * side[part]
        yield spec, sample[part], unit[part], side[part]


def _improve(
    bounded: Bounded, j: int, ends: list[Tensor], which: Tensor, iterations: int, rows: int, memory: int
) -> None:
    """Raise the lower bounds `ends` of z and of -z, each (n, size), where `which` (2, n, size) says so."""
    if groups := groups_of(bounded.network, j, rows):
        bound_together(bounded, j, groups, ends, which, iterations, rows, memory)
    else:
        bound_apart(bounded, j, ends, which, iterations, rows, memory)


def bound_apart(
    bounded: Bounded, j: int, ends: list[Tensor], which: Tensor, iterations: int, rows: int, memory: int
) -> None:
    """Bound a layer as `bound_together` does, with one linear function per neuron.

    Without `iterations` the intervals of the layer below count too.
    """
    for spec, sample, unit, side in unit_rows(which, rows):
        part = bounded.start(j, spec, sample)
        if iterations:
            lower = bounded.value(improved(bounded, part, iterations, 0.0, memory))
        else:
            lower = torch.maximum(bounded.value(part), _interval_bounds(bounded, j, spec, sample))
        for k, end in enumerate(ends):
            at = side == k
            end[sample[at], unit[at]] = torch.maximum(end[sample[at], unit[at]], lower[at])


def _interval_bounds(bounded: Bounded, j: int, spec: Tensor, sample: Tensor) -> Tensor:
    """Return float64 lower bounds (m,) of linear functions of layer j's inputs, by intervals of the layers below.

    Each function is a row of `spec` (m, size of layer j), in the region `sample` (m,).
    """
    spec = spec.double()
    tape = bounded.network.tape(len(spec), torch.float64)
    lower = spec @ tape.node(j)[0].detach().flatten()
    for leaf, gradient in enumerate(tape.gradients(j, spec)):
        if gradient is not None:
            centre, radius = bounded.box(leaf, sample)
            weights = gradient.flatten(1)
            lower = lower + (weights * centre).sum(1) - (weights.abs() * radius).sum(1)
    return lower


def _exact(bounded: Bounded, j: int, ends: list[Tensor], rows: int) -> None:
    """Bound an affine map of the input: its rows are the same for every sample, so that they are found once."""
    network, region, size = bounded.network, bounded.region, bounded.network.layers[j].size
    for part in torch.arange(size, device=network.device).split(rows):
        maps = network.maps(j, part)
        assert maps is not None
        a, constant = maps
        for i in range(len(region)):
            at = torch.full((len(part),), i, device=network.device)
            ends[0][i, part] = constant + region.minimum(a, at)[0]
            ends[1][i, part] = region.minimum(-a, at)[0] - constant
