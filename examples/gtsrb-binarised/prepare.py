"""Find the binarised network and the traffic signs, and write both here."""

from __future__ import annotations

import argparse
import os
import shutil
import tarfile
from pathlib import Path

GTSRB = Path(os.environ.get("WINDTUNNEL_SHARED", "../shared")) / "data" / "colour" / "gtsrb"
SOURCE = "github.com/apostovan21/vnncomp2023, commit 3587d3b"


def find(name: str, what: str) -> Path:
    """Return the file beside prepare.py or in the shared folder; end with a line that says where it comes from."""
    for path in (Path(name), GTSRB / name):
        if path.is_file():
            return path
    raise SystemExit(f"{name} is missing: {what} from {SOURCE}; put it beside prepare.py")


def main() -> None:
    """Make bnn.onnx, and signs/ with a folder per class."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--per-class", type=int, default=10, help="signs of each of the 43 classes, at most 10")
    per_class = parser.parse_args().per_class
    graph = find("bnn_48.onnx", "the network of 48x48 pixels, with its weights,")
    archive = find("test.tar", "GTSRB's test images, a folder per class, as a tar file")
    shutil.copyfile(graph, "bnn.onnx")
    shutil.rmtree("signs", ignore_errors=True)
    with tarfile.open(archive) as content:
        if hasattr(tarfile, "data_filter"):  # from Python 3.11.4 on
            content.extraction_filter = tarfile.data_filter
        content.extractall("extracted")
    for folder in sorted(path for path in Path("extracted/test").iterdir() if path.is_dir()):
        target = Path("signs") / folder.name
        target.mkdir(parents=True)
        for file in sorted(folder.iterdir())[:per_class]:
            shutil.copyfile(file, target / file.name)
    shutil.rmtree("extracted")
    print(f"bnn.onnx, and signs/ with {sum(1 for _ in Path('signs').glob('*/*'))} pictures")


if __name__ == "__main__":
    main()
