"""Draw the first page of a report.pdf: `python -m tools.first_page REPORT.pdf PICTURE.png [--photographs]`.

Photographs are left out unless asked for: those of ImageNet, CIFAR-10 and GTSRB have research terms. Needs poppler's pdftoppm.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from PIL import Image
from pypdf import ObjectDeletionFlag, PdfReader, PdfWriter


def draw(report: Path, picture: Path, *, photographs: bool = False) -> None:
    """Write page 1 of `report` as a PNG of 64 colours."""
    writer = PdfWriter()
    writer.add_page(PdfReader(report).pages[0])
    if not photographs:
        writer.remove_objects_from_page(writer.pages[0], ObjectDeletionFlag.XOBJECT_IMAGES)
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "page.pdf"
        writer.write(page)
        subprocess.run(
            ["pdftoppm", "-r", "90", "-png", "-singlefile", str(page), str(page.with_suffix(""))], check=True
        )
        image = Image.open(page.with_suffix(".png")).convert("RGB")
    image.quantize(64).save(picture, optimize=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--photographs", action="store_true")
    arguments = parser.parse_args()
    draw(arguments.report, arguments.picture, photographs=arguments.photographs)
