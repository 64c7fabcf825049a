"""Write files where a user says: never over an input, never through a link to outside, whole or not at all."""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from windtunnel.boundary.files import path_text
from windtunnel.core.errors import UserError

# Files that no output may replace, whatever it is called: they are the user's or DVC's.
_PROTECTED_NAMES = frozenset({"params.yaml", "dvc.yaml", "dvc.lock", ".dvcignore", ".gitignore", ".windtunnel.json"})
# What inputs end in: never the suffix of an output that replaces a file, unless it is named.
_INPUT_SUFFIXES = frozenset(
    """
    .csv .dvc .gz .idx .ipynb .json .npy .npz .onnx .pt .pt2 .pth .ckpt .py .safetensors .toml .vnnlib .yaml .yml
    .jpg .jpeg .png .db
    """.split()
)
_NAME_BYTES = 240  # of a file or folder; file systems take 255, and what is written has a longer name until it is whole
_PROTECTED_FOLDERS = frozenset({".git", ".dvc"})


def check_output(
    path: Path,
    *,
    where: str,
    suffixes: Iterable[str] = (),
    inputs: Iterable[Path] = (),
    inside: Path | None = None,
    of_project: bool = False,
) -> Path:
    """Return `path` if a file may be written there; call it before any work, and write by `records.files.replacing`.

    Args:
        path: where to write; missing folders above it are made later.
        where: the option that names it, for the message.
        suffixes: what a file that is there already may end in to be replaced, such as `.html`; any if empty.
        inputs: files that the command reads.
        inside: the folder that must not be left, links resolved.
        of_project: the output is itself a file of the project, such as params.yaml.

    Raises:
        UserError: in one line, where something is there that must not be replaced, or a folder above it is none.
    """
    name = f"{where} {path_text(path)}"
    try:
        real = path.resolve()
        if inside is not None and not real.is_relative_to(inside.resolve()):
            raise UserError(f"{name}: leads out of {path_text(inside)}, where nothing is written")
        protected = {path.name, real.name} & _PROTECTED_NAMES and not of_project
        if protected or _PROTECTED_FOLDERS & set(real.parts):
            raise UserError(f"{name}: is a file of the project that is never overwritten; another name is needed")
        if any(real == Path(source).resolve() or _is_same(real, Path(source)) for source in inputs):
            raise UserError(f"{name}: is an input of this command and would be overwritten; another name is needed")
        if any(len(os.fsencode(part)) > _NAME_BYTES for part in real.parts):
            raise UserError(f"{name}: is too long for the name of a file")
        above = next(parent for parent in real.parents if os.path.lexists(parent))
        if not above.is_dir():
            raise UserError(f"{name}: {path_text(above)} is a file, no folder")
        if not os.path.lexists(real):
            return path
        if not real.is_file():
            raise UserError(f"{name}: is there and no regular file; another name is needed")
        allowed = tuple(suffixes)
        if allowed and real.suffix.lower() not in allowed:
            raise UserError(
                f"{name}: is there and does not end in {' or '.join(filter(None, allowed))}; it is not overwritten"
            )
        if not allowed and not of_project and real.suffix.lower() in _INPUT_SUFFIXES:
            raise UserError(f"{name}: is there and may be an input, by its suffix; it is not overwritten")
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"{name}: {getattr(error, 'strerror', None) or error}") from error
    return path


def check_output_folder(folder: Path, files: Iterable[str], *, where: str) -> Path:
    """Return `folder` if `files` may be written into it, each over a file of its own suffix; call it before any work.

    Without `files` the folder must be new or empty. Raises UserError, in one line, as `check_output` does.
    """
    names = tuple(files)
    for name in names or (".new",):
        check_output(folder / name, where=where, suffixes=(Path(name).suffix,))
    if not names and os.path.lexists(folder) and next(folder.iterdir(), None) is not None:
        raise UserError(f"{where} {path_text(folder)}: is not empty; name another folder")
    return folder


def _is_same(first: Path, second: Path) -> bool:
    try:
        return first.samefile(second)
    except OSError:
        return False


def remove_inside(path: Path, folder: Path) -> None:
    """Remove a file, a link or a folder below `folder`; links are removed, not followed. Raises UserError outside of it."""
    if not path.parent.resolve().is_relative_to(folder.resolve()):
        raise UserError(f"{path_text(path)}: leads out of {path_text(folder)}, where nothing is removed")
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
