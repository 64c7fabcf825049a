"""Discover models, data and DVC stages for `windtunnel init`."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from windtunnel.boundary.discovery import samples, upstream, weights
from windtunnel.boundary.discovery.factory import factories
from windtunnel.boundary.discovery.samples import SampleFiles
from windtunnel.boundary.discovery.walk import Files, files_below, read_or_skip
from windtunnel.boundary.discovery.weights import Weights
from windtunnel.boundary.files import is_file, path_text
from windtunnel.boundary.text import read_yaml
from windtunnel.core.errors import UserError
from windtunnel.core.repository import repository
from windtunnel.params.data import MAX_SIDE

# What upstream params call the side of images.
_SIDES = ("image_size", "img_size", "input_size", "imgsz", "resize", "crop_size")


@dataclass(frozen=True)
class FolderContents:
    """The folder `root`, looked at without `folder`, which the project will be."""

    root: Path
    folder: Path

    @cached_property
    def files(self) -> Files:
        """The files of interest."""
        return files_below(self.root, self.folder)

    @cached_property
    def made(self) -> dict[Path, str]:
        """Return the outputs of the existing DVC stages: path -> stage."""
        return upstream.outputs(self.root, self.files.dvc)

    @cached_property
    def weights(self) -> list[Weights]:
        """Models, the likeliest first."""
        return weights.candidates(self.root, self.files.weights, self.files.pretrained, self.made)

    @cached_property
    def data(self) -> list[SampleFiles]:
        """Data, the likeliest first."""
        return samples.candidates(self.root, self.files, self.made)

    @cached_property
    def store(self) -> str:
        """The address of an MLflow store in this folder; empty where there is none."""
        return "sqlite:///../mlflow.db" if (self.root / "mlflow.db").is_file() else ""

    @cached_property
    def resize(self) -> tuple[int, int] | None:
        """The size of images that a params.yaml here speaks of."""
        if not is_file(self.root / "params.yaml"):
            return None
        raw = read_or_skip(Path("params.yaml"), lambda path: read_yaml(self.root / path))
        for block in [raw, *raw.values()] if isinstance(raw, dict) else []:
            for key in _SIDES:
                value = block.get(key) if isinstance(block, dict) else None
                if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_SIDE:
                    return (value, value)
        return None

    def model_at(self, name: str) -> Weights | None:
        """Return the model that the user names, a path or `library:name`; None where it is nothing that loads."""
        if weights_file := weights.named(name):
            return weights_file
        path = self._check_link("--model", Path(name))
        return read_or_skip(path, lambda path: weights.look_at(self.root, path, upstream.maker(path, self.made)))

    def data_at(self, path: Path) -> SampleFiles:
        """Return the data at a path that the user names."""
        return samples.look_at(self.root, self._check_link("--data", path), self.made)

    def _check_link(self, option: str, path: Path) -> Path:
        """Return a path that the user names; it may not be there yet. Raises UserError for a link that leads nowhere."""
        full = self.root / path
        if os.path.islink(full) and not is_file(full) and not os.path.isdir(full):
            raise UserError(f"init: {option} {path_text(path)}: is a link that leads to no file and no folder")
        return path

    def factories(self, model: Weights) -> list[str]:
        """List candidate factories for a state dict: of the whole repository, for its root is where modules are found."""
        if model.source != "state_dict" or not model.parts:
            return []
        top = repository(self.root) or self.root
        files = self.files.code
        if top != self.root:
            below = Path(os.path.relpath(self.root, top))
            files = [below / path for path in files]
        return factories(top, files, model.parts)
