"""Run the model on a few prepared samples: the table and the picture of `windtunnel check`."""

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from pydantic import BaseModel, Field
from torch import Tensor

from windtunnel.assessments.figures.pictures import pixels_of
from windtunnel.core.dataset import Dataset, select
from windtunnel.evaluation.input_conventions.corrections import MEASURED

SHOWN = 5
_SIDE, _TEXT, _GAP = 224, 76, 12  # pixels


class SeenSample(BaseModel):
    """One sample as the model sees it: the values of its input, and the softmax of what it says."""

    name: str
    label: str = Field(description="empty where there is none")
    prediction: str
    confidence: float
    low: float
    high: float


def chosen(data: Dataset, n: int = MEASURED) -> Tensor:
    """Return indices (int64) of at most `n` samples, equally many of each class as far as they last."""
    return select(len(data), n, "stratified", 0, data.targets)


def rows(data: Dataset, logits: Tensor) -> list[SeenSample]:
    """Return the first few samples of `data`, with logits (N, K) of the model on them."""
    table_rows = []
    for i in _shown(data):
        scores = logits[i].softmax(0)
        best = int(scores.argmax())
        label = data.class_names[int(data.targets[i])] if data.labelled else ""
        low, high = float(data.inputs[i].min()), float(data.inputs[i].max())
        columns = {"name": data.ids[i], "label": label, "prediction": data.class_names[best]}
        table_rows.append(SeenSample(**columns, confidence=float(scores[best]), low=low, high=high))
    return table_rows


def _shown(data: Dataset) -> list[int]:
    """Select samples of different classes where possible."""
    return chosen(data, SHOWN).tolist() if data.labelled else list(range(min(SHOWN, len(data))))


def picture(data: Dataset, table: list[SeenSample], path: Path) -> None:
    """Write the samples of `table` as the model sees them, side by side with its predictions. For images."""
    width = len(table) * (_SIDE + _GAP) + _GAP
    sheet = Image.new("RGB", (width, _SIDE + _TEXT + 2 * _GAP), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(15)
    for column, (i, row) in enumerate(zip(_shown(data), table, strict=True)):
        x_left = _GAP + column * (_SIDE + _GAP)
        tile = _image(data.inputs[i], data.value_range)
        scale = _SIDE / max(tile.size)
        size = (max(1, round(tile.width * scale)), max(1, round(tile.height * scale)))
        how = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
        sheet.paste(tile.resize(size, how), (x_left, _GAP))
        wrong = bool(row.label) and row.label != row.prediction
        lines = [f"label {row.label}" if row.label else "no label", f"{row.prediction} {row.confidence:.0%}", row.name]
        for number, line in enumerate(lines):
            colour = "#D55E00" if number == 1 and wrong else "black"
            draw.text((x_left, _GAP + _SIDE + 6 + 22 * number), _fitting(line, font), fill=colour, font=font)
    path.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(path)


def _fitting(line: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    """Return the line, its middle left out where it is too long for a tile."""
    text = line if line.isascii() else line.encode("ascii", "replace").decode()  # what the built-in font has
    while font.getlength(text) > _SIDE and len(text) > 4:
        half = (len(text) - 2) // 2
        text = f"{text[: half - 1]}..{text[-half + 1 :]}" if half > 1 else text[:4]
    return text


def _image(sample: Tensor, value_range: tuple[float, float]) -> Image.Image:
    low, high = value_range
    return Image.fromarray(np.ascontiguousarray(pixels_of(((sample - low) / (high - low))[None])[0])).convert("RGB")
