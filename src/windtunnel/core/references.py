"""`module:function` references in params.yaml, and the repository of a project, whose data, weights and modules it uses."""

import logging
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib import import_module
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from pathlib import Path
from typing import Any

from windtunnel.core.errors import OutOfTimeError, UserError, unknown_word

# What code of the user's may raise. SystemExit too: `sys.exit(0)` in it must not look like a success of ours.
FOREIGN = (Exception, SystemExit)


def first_line(error: BaseException) -> str:
    """Return the first line of an exception's text, cut where it is long; its type where it has none."""
    if isinstance(error, SystemExit):
        return f"it called sys.exit({error.code!r})"
    try:
        text = str(error).strip()
    except FOREIGN:  # an exception of somebody else's that cannot be printed
        text = ""
    return (text or type(error).__name__).splitlines()[0][:200]


def users_place(error: BaseException) -> str:
    """Return `file, line n: ` of the last line of the user's own code that an error passed; empty where it passed none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users_file(frame.filename)]
    return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""


def is_users_file(filename: str) -> bool:
    """Return True for a file of the user: in the project or its repository, and neither ours nor of an installed package."""
    path, root = Path(filename), repository() or Path.cwd()
    ours = (Path(__file__).parents[1], root / "stages", root / "pipeline", Path(sys.prefix))
    return path.is_absolute() and path.is_relative_to(root) and not any(path.is_relative_to(top) for top in ours)


def callers_place(error: BaseException) -> str:
    """Return `file, line n:` where code of the caller's, wherever it lies, was the last to run but for installed packages; else empty."""
    installed = tuple({*sysconfig.get_paths().values(), sys.prefix, "<frozen"})
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(installed)]
    is_ours = not frames or Path(frames[-1].filename).is_relative_to(Path(__file__).parents[1])
    return "" if is_ours else f"{frames[-1].filename}, line {frames[-1].lineno}:"


@contextmanager
def quiet_library(level: int = logging.ERROR) -> Iterator[None]:
    """Keep a library's warnings, and its log messages up to `level`, from the terminal."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextmanager
def foreign_errors(message: Callable[[BaseException], str]) -> Iterator[None]:
    """Make a UserError of one line, `message(error)`, of whatever code or a file of somebody else's raises in the block.

    UserErrors and interruptions pass, and who runs out of memory or time is told what needs less.
    """
    try:
        yield
    except (UserError, MemoryError, OutOfTimeError, KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # asyncio.CancelledError and the like are no Exception
        if "can't allocate memory" in first_line(error):
            raise
        raise UserError(message(error)) from error


def users_code(what: str) -> AbstractContextManager[None]:
    """Run code of the user; whatever it raises becomes a UserError of one line that begins with `what`."""
    return foreign_errors(lambda e: f"{what} raised {type(e).__name__}: {users_place(e)}{first_line(e)}")


_around: list[
    Callable[[str], AbstractContextManager[None]]
] = []  # set by `boundary.limits`, which every entry point imports


def limit_imports(around: Callable[[str], AbstractContextManager[None]]) -> None:
    """Import code of users and plug-ins inside `around(what)` from here on."""
    _around[:] = [around]


def limited_import(what: str) -> AbstractContextManager[None]:
    """Limit time and memory of the import in the block; `what` begins the message. Raises UserError where they are exceeded."""
    return _around[0](what) if _around else nullcontext()


def load_object(reference: str) -> Any:
    """Import `module:name`, or a module without a name. Raises whatever the import raises."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


class _UncachedLoader(SourceFileLoader):
    """Imports a module of the user's and writes no bytecode beside it."""

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write nothing; bytecode that is there already is read."""


def _users_finder(folder: str) -> FileFinder:
    """Return the finder of modules in a folder of the user. Raises ImportError for other folders, which leaves them to Python."""
    if not Path(folder).is_dir() or not is_users_file(folder):
        raise ImportError(folder)
    sourceless = (SourcelessFileLoader, BYTECODE_SUFFIXES)
    return FileFinder(folder, (ExtensionFileLoader, EXTENSION_SUFFIXES), (_UncachedLoader, SOURCE_SUFFIXES), sourceless)


def import_without_bytecode() -> None:
    """Import the user's modules without __pycache__ folders from here on, so that his repository stays as it is."""
    if _users_finder not in sys.path_hooks:
        sys.path_hooks.insert(0, _users_finder)
    for folder in map(str, code_folders()):
        sys.path_importer_cache.pop(folder, None)


def find_own_modules() -> None:
    """Let Python find the user's own modules: those beside params.yaml first, those of the repository after what is installed."""
    import_without_bytecode()
    project, *others = map(str, code_folders())
    if project not in sys.path:
        sys.path.insert(0, project)
    sys.path += [folder for folder in others if folder not in sys.path]


def resolve(reference: str, where: str) -> Callable[..., object]:
    """Return the function named `module:function`; modules of the project and of its repository are found too.

    Raises UserError where the form is off, the module does not import or the function is not in it.
    """
    module_name, colon, name = reference.partition(":")
    if not colon or not module_name or not name:
        raise UserError(f"{where}: '{reference}' is not of the form module:function")
    find_own_modules()
    with (
        foreign_errors(lambda e: f"{where}: cannot import '{module_name}' ({type(e).__name__}: {first_line(e)})"),
        limited_import(f"{where}: '{module_name}', which is imported,"),
    ):
        module = load_object(module_name)
    attribute = getattr(module, name, None)
    if not callable(attribute):
        public = [n for n, v in vars(module).items() if callable(v) and not n.startswith("_")]
        raise UserError(unknown_word(where, name, public, what=f"a function of {module_name}"))
    function: Callable[..., object] = attribute
    return function


def repository(project: Path | None = None) -> Path | None:
    """Return the root of the git repository that a project (the current directory) is in, absolute; None outside of one."""
    return _above(project, ".git")


def dvc_root(project: Path | None = None) -> Path | None:
    """Return the root of DVC's repository that a project (the current directory) is in, absolute; None outside of one."""
    return _above(project, ".dvc")


def asked_by(root: Path) -> Path:
    """Return the root of the git repository that asked for a DVC experiment (`--queue`, `--temp`) whose clone has the root `root`.

    Such a clone lies under .dvc/tmp/exps of DVC's repository, and is gone afterwards. `root` itself where it is none.
    """
    parts = root.parts
    for i in range(len(parts) - 2):
        if parts[i : i + 3] == (".dvc", "tmp", "exps"):
            return repository(Path(*parts[:i])) or Path(*parts[:i])
    return root


def asking_project() -> Path:
    """Return the current directory, absolute; in an experiment of DVC the same folder of the repository that started it."""
    current = Path.cwd()
    root = repository(current)
    return asked_by(root) / current.relative_to(root) if root else current


def code_folders(project: Path | None = None) -> list[Path]:
    """Return the folders that hold the user's own modules: beside params.yaml, at the root of the repository, and in its src/."""
    current = (project or Path()).absolute()
    root = repository(current)
    return list(dict.fromkeys([current, *([root, root / "src"] if root else [])]))


def _above(project: Path | None, mark: str) -> Path | None:
    current = (project or Path()).absolute()
    return next((folder for folder in (current, *current.parents) if (folder / mark).exists()), None)
