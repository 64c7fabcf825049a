"""Which ReLUs are taken together with max pooling: `maxpool_bounds` bounds the largest of four numbers and its ReLU as one maximum.

The ReLU of the largest number is the largest ReLU, so that it may stand on either side, where nothing else takes what is in between.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from windtunnel.assessments.verification.branch_and_bound.activations import REWRITES, of_four_apart

# The ReLUs that are left out, and the poolings that stand for both; calls are known by their number among those of functions that are
# rewritten.
Joined = tuple[frozenset[int], frozenset[int]]
NOTHING: Joined = (frozenset(), frozenset())

# At these checks of exported programs, the copy in float64 would fail for being one.
SKIPPED = {"_assert_tensor_metadata", "_assert"}


@torch.no_grad()
def joined(module: nn.Module, x: Tensor) -> Joined:
    """Return which ReLUs and poolings of a module are fused, by a run on x (m, *input_shape)."""
    mode = _Looking()
    with mode:
        calls = module(x)
    mode.take(calls, -1)
    return mode.joined()


def name_of(func: Any) -> str:
    """Return the name of a torch function, without the underscore of those that work in place."""
    name = str(getattr(func, "__name__", "")).split(".")[0]
    return name if name.startswith("_") else name.rstrip("_")


class _Looking(TorchFunctionMode):
    """Finds max pooling over windows of four, side by side, that takes a ReLU's values which nothing else does, or gives its own to one.

    A call is known by its number among those of functions that are rewritten.
    """

    def __init__(self) -> None:
        super().__init__()
        self._calls = 0
        self._made: dict[int, Tensor] = {}  # what each ReLU and each pooling gave; kept, so that its identity is
        self._relus = set[int]()
        self._users: dict[int, list[int]] = {}  # the calls that take it, -1 where they are none of these

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # torch's own types
        kwargs, name, call = kwargs or {}, name_of(func), -1
        if name in SKIPPED:
            return None
        if name in REWRITES:
            call, self._calls = self._calls, self._calls + 1
        is_candidate = bool(args) and (name == "relu" or (name == "max_pool2d" and of_four_apart(*args, **kwargs)))
        self.take((args, kwargs), call if is_candidate else -1)
        result = func(*args, **kwargs)
        if is_candidate:
            self._made[call], self._users[call] = result, []
            if name == "relu":
                self._relus.add(call)
        return result

    def take(self, values: Any, call: int) -> None:
        """Write down that a call takes these values, -1 for what is none of these calls."""
        for value in tree_leaves(values):
            for maker in reversed(self._made):
                if self._made[maker] is value:
                    self._users[maker].append(call)
                    break  # what works in place gives what it took

    def joined(self) -> Joined:
        """Return (the ReLUs, the poolings) that are taken together."""
        calls = set[int]()
        for source, users in self._users.items():
            both = {source, *users}
            if len(users) == 1 and min(both) >= 0 and len(both & self._relus) == 1 and not both & calls:
                calls |= both
        return frozenset(calls & self._relus), frozenset(calls - self._relus)
