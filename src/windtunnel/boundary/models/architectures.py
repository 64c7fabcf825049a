"""Small classifiers for the embedded default, and the LeNet5 of the reference weights.

All of them are verifiable: ReLU, no dropout, no overlapping pooling, logits out, inputs in [0, 1].
"""

from collections.abc import Callable
from math import prod

from torch import Tensor, nn

from windtunnel.core.errors import UserError


def cnn(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two strided convolutions and a hidden layer: 166,406 parameters at 1x28x28, 38,406 at 1x8x8.

    Raises UserError for inputs that are no images, or images of fewer than 3 pixels a side.
    """
    if len(input_shape) != 3 or min(input_shape[1:]) < 3:
        shape = "x".join(map(str, input_shape))
        raise UserError(
            f"model.train.architecture: cnn needs images of at least 3x3, the data are {shape}; mlp takes any"
        )
    channels, height, width = input_shape
    stride = 2 if min(height, width) >= 16 else 1
    out_height, out_width = (_after(side, stride) for side in (height, width))
    return nn.Sequential(
        nn.Conv2d(channels, 16, 4, stride=stride, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 4, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * out_height * out_width, 100),
        nn.ReLU(),
        nn.Linear(100, num_classes),
    )


def _after(side: int, stride: int) -> int:
    first = (side + 2 - 4) // stride + 1
    return (first + 2 - 4) // 2 + 1


def mlp(input_shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two hidden layers of 32 units: small enough for a complete solver."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(prod(input_shape), 32),
        nn.ReLU(),
        nn.Linear(32, 32),
        nn.ReLU(),
        nn.Linear(32, num_classes),
    )


ARCHITECTURES: dict[str, Callable[[tuple[int, ...], int], nn.Module]] = {"cnn": cnn, "mlp": mlp}


class LeNet5(nn.Module):
    """The LeNet5 of advertorch's published weights: input (N, 1, 28, 28) in [0, 1], logits (N, 10) out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3, padding=1)
        self.conv2 = nn.Conv2d(32, 64, 3, padding=1)
        self.linear1 = nn.Linear(7 * 7 * 64, 200)
        self.linear2 = nn.Linear(200, 10)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of the images `x`."""
        x = nn.functional.max_pool2d(self.conv1(x).relu(), 2)
        x = nn.functional.max_pool2d(self.conv2(x).relu(), 2)
        logits: Tensor = self.linear2(self.linear1(x.flatten(1)).relu())
        return logits


def lenet5() -> nn.Module:
    """Build `LeNet5`, for `model: {source: state_dict, factory: windtunnel.boundary.models.architectures:lenet5}`."""
    return LeNet5()
