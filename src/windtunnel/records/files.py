"""Files of an assessment that need no tensors to be read: this module is quick to import."""

import hashlib
import json
import math
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from windtunnel.core.contracts import Json
from windtunnel.core.errors import InfrastructureError, UserError

DATA_FILE = "robustness_data.pt"
METADATA_FILE = "metadata.json"
RUNTIME_FILE = "runtime.json"  # volatile facts; in .dvcignore, so no part of any DVC output
IGNORE_FILE = ".dvcignore"


def hidden_from_dvc(robustness: Path) -> list[str]:
    """Names of the assessments that `hide_from_dvc` hides; they run again at the next `dvc repro`."""
    return sorted(path.parent.name for path in robustness.glob(f"*/{IGNORE_FILE}"))


def hide_from_dvc(directory: Path, *, is_hidden: bool) -> None:
    """Make an output of a stage an empty directory for DVC, by a `.dvcignore` in it, or undo that.

    DVC reads the file after the stage's command, before it saves: nothing of a hidden output is cached, pushed or restored.
    """
    path = directory / IGNORE_FILE
    if is_hidden:
        path.write_text("*\n", encoding="utf-8")
    else:
        path.unlink(missing_ok=True)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a file beside `path` to write; it replaces `path` when the block ends, atomically.

    Its name keeps the suffix, by which some writers choose their format. Raises InfrastructureError, in one line, where
    the disk is full or read-only.
    """
    temporary = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield temporary
        temporary.replace(path)
    except OSError as error:
        raise cannot_be_written(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


def cannot_be_written(path: Path, error: Exception) -> InfrastructureError:
    """Return the one line for a file that the disk does not take."""
    reason = getattr(error, "strerror", None) or (str(error).strip() or type(error).__name__).splitlines()[0][:200]
    return InfrastructureError(f"{path}: cannot be written ({reason}); what is finished is kept, `dvc repro` continues")


def write_json(content: object, path: Path) -> None:
    """Write JSON that is equal for equal content: keys in the given order, no NaN."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(plain_json(content), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def read_own(path: Path) -> bytes:
    """Read a file that we or DVC have written, or that is a part of a package. Raises OSError."""
    return path.read_bytes()


def read_json(path: Path) -> Json:
    """Read a JSON file of ours. Raises UserError where missing or damaged."""
    if not path.is_file():
        raise UserError(f"{path}: no such file")
    try:
        return parse_own_json(read_own(path))
    except ValueError as error:
        raise UserError(f"{path}: not JSON ({error})") from error


def parse_own_json(text: str | bytes) -> Json:
    """Parse JSON that we have written. Raises ValueError where it is damaged."""
    try:
        content: Json = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return content


def read_block(path: Path, *keys: str) -> dict[str, Json]:
    """Read a JSON file that holds a map, whose `keys` hold maps too.

    Raises UserError, in one line, where it is missing, damaged or something else.
    """
    content = read_json(path)
    if not isinstance(content, dict):
        raise UserError(
            f"{path}: is damaged: a map of keys was expected, it holds a {type(content).__name__}; run dvc repro"
        )
    for key in keys:
        if not isinstance(content.get(key), dict):
            raise UserError(f"{path}: is damaged: '{key}' is missing or no map; run dvc repro")
    return content


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Digest of a file's bytes. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(algorithm, usedforsecurity=False)).hexdigest()


def is_whole(path: Path) -> bool:
    """Return True if the end of a tensor file is there, which torch needs; gigabytes are not read."""
    return zipfile.is_zipfile(path)


def is_tensor_summary(value: Json) -> bool:
    """Return True if `plain_json` made this of a tensor: its shape depends on how many samples there were to work on."""
    return isinstance(value, Mapping) and value.keys() == {"shape", "dtype", "device"}


def plain_block(values: Mapping[str, object]) -> dict[str, Json]:
    """Return a map of any values as JSON, see `plain_json`."""
    return {key: plain_json(value) for key, value in values.items()}


def plain_json(value: object) -> Json:
    """Any value as JSON: tensors become their shape, dtype and device; infinities and NaN become text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if hasattr(value, "device") and hasattr(value, "dtype") and hasattr(value, "shape"):
        return {"shape": list(value.shape), "dtype": str(value.dtype), "device": str(value.device)}
    if isinstance(value, Mapping):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, set | frozenset):  # their order differs between processes, and equal results are equal bytes
        return [plain_json(item) for item in sorted(value, key=str)]
    if isinstance(value, list | tuple):
        return [plain_json(item) for item in value]
    if hasattr(value, "item"):  # numpy scalars
        return plain_json(value.item())
    return str(value)
