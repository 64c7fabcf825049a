"""Nothing outside `boundary` opens, parses, imports or converts what a user gave: held for code that does not exist yet.

A call from the list below fails this test wherever it stands, unless its file is exempt for that call, with a reason.
"""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "windtunnel"
SCANNED = (SOURCE, ROOT / "stages", ROOT / "pipeline")
# Functions by their full name, after imports are resolved; a trailing * stands for everything below a module.
FUNCTIONS = {
    "open", "io.open", "os.open", "gzip.open", "bz2.open", "lzma.open", "numpy.load", "numpy.loadtxt", "numpy.genfromtxt",
    "numpy.fromfile", "numpy.memmap", "torch.load", "torch.jit.load", "torch.export.load", "torch.hub.load",
    "safetensors.safe_open", "safetensors.torch.load_file", "json.load", "json.loads", "yaml.load", "yaml.safe_load",
    "ruamel.yaml.YAML", "tomllib.load", "tomllib.loads", "csv.reader", "csv.DictReader", "pickle.load", "pickle.loads",
    "cloudpickle.load", "cloudpickle.loads", "onnx.load", "onnx.load_model", "onnx.load_from_string", "onnx.parser.*",
    "onnxruntime.InferenceSession", "PIL.Image.open", "zipfile.ZipFile", "zipfile.is_zipfile", "tarfile.open",
    "importlib.import_module", "__import__", "runpy.run_path", "runpy.run_module", "importlib.util.spec_from_file_location",
    "exec", "eval", "compile", "urllib.request.urlopen", "requests.get", "sqlite3.connect", "shutil.unpack_archive",
    "vnnlib.parse_query_string", "xml.etree.ElementTree.parse", "xml.etree.ElementTree.fromstring", "timm.create_model", "pandas.read_csv",
    "builtins.*", "codecs.open", "io.FileIO", "io.open_code", "linecache.getline", "linecache.getlines", "tokenize.open",
    "fileinput.input", "json.JSONDecoder", "yaml.*", "pickle.Unpickler", "joblib.*", "dill.*", "marshal.load", "marshal.loads",
    "shelve.open",
    "numpy.lib.*", "numpy.fromstring", "torch.serialization.*", "torch.package.*", "torch.from_file", "torch.UntypedStorage.from_file",
    "safetensors.*", "onnxruntime.*", "transformers.*", "huggingface_hub.*", "tensorflow.*", "ai_edge_litert.*", "PIL.ImageFile.*",
    "matplotlib.image.imread", "matplotlib.pyplot.imread", "skimage.io.*", "imageio.*", "cv2.*", "cv2.imread",
    "torchvision.*", "h5py.*", "scipy.io.*",
    "sqlite3.*", "tarfile.*", "zipfile.Path", "urllib.request.*", "http.client.*", "requests.*", "httpx.*", "importlib.machinery.*",
    "importlib.util.module_from_spec", "pkgutil.*", "ast.literal_eval", "configparser.*", "xml.etree.ElementTree.iterparse", "vnnlib.*",
    "onnx.load_tensor", "onnx.load_model_from_string",
    # A shell parses what it is given, and so do libraries of the pipeline that are asked for a file, a model or a text.
    "os.system", "os.popen", "os.exec*", "os.spawn*", "os.posix_spawn*", "subprocess.getoutput", "subprocess.getstatusoutput",
    "asyncio.create_subprocess_shell", "dvc.api.*", "dvc.utils.serialize.load*", "dvc.utils.serialize.parse*",
    "mlflow.artifacts.load*", "mlflow.load_table", "mlflow.pyfunc.load*", "mlflow.pytorch.load*", "mlflow.onnx.load*",
    "mlflow.sklearn.load*", "mlflow.transformers.load*", "mlflow.tensorflow.load*", "mlflow.keras.load*", "mlflow.xgboost.load*",
    "mlflow.lightgbm.load*", "mlflow.projects.*", "sqlalchemy.create_engine", "duckdb.*", "polars.read*", "polars.scan*", "pandas.read*",
    "datasets.load*", "aiohttp.*", "socket.create_connection", "ftplib.*", "imp.*", "zipimport.*", "site.addsitedir", "code.*",
    "plistlib.*", "email.message_from*", "ctypes.cdll.*",
}  # fmt: skip
# Methods of any object: of paths, models of pydantic, classes of transformers.
METHODS = {
    "read_text", "read_bytes", "model_validate_json", "from_pretrained", "open", "load_state_dict", "parse_raw", "parse_file",
    "load_module", "exec_module", "memmap", "fromfile", "readinto", "load_context",
}  # fmt: skip
# Of these the name alone is enough: `map(Path.read_text, paths)` passes the method on.
UNCALLED = {
    "read_text",
    "read_bytes",
    "model_validate_json",
    "from_pretrained",
    "ParseFromString",
    "FromString",
    "extractall",
}
# An `open` of these is no file.
NO_FILES = {"webbrowser"}

# Our own files are read by their types, and a few calls read the system, our own code or a library's data.
MACHINERY = (
    "FileFinder SourceFileLoader ExtensionFileLoader SourcelessFileLoader "
    "BYTECODE_SUFFIXES EXTENSION_SUFFIXES SOURCE_SUFFIXES"
).split()
EXEMPT: dict[str, tuple[set[str], str]] = {
    "assessments/corruptions/corrupt.py": (
        {"cv2.imread"},
        "replaced while frost reads the pictures of its own package",
    ),
    "core/machine.py": ({".read_text"}, "files of /proc and /sys"),
    "core/references.py": (
        {"importlib.import_module", *(f"importlib.machinery.{name}" for name in MACHINERY)},
        "the one place that imports what a reference names, without bytecode beside the user's modules",
    ),
    "core/scratch.py": ({"numpy.memmap"}, "temporary files of ours"),
    "operations/evidence/verify.py": (
        {"open", ".open", "json.loads", "zipfile.ZipFile"},
        "is packed alone, and has no windtunnel beside it",
    ),
    "operations/parallel.py": (
        {"runpy.run_module", "shell=True"},
        "runs the commands of dvc.yaml's stages as DVC does, ours as `python -m`",
    ),
    "pipeline/prefect_flow.py": (
        {".read_text"},
        "the summary that the command wrote; Prefect's environment lacks windtunnel",
    ),
    "records/artifacts.py": ({"torch.load", "zipfile.ZipFile"}, "robustness_data.pt, the type of our own file"),
    "records/files.py": (
        {".open", "json.loads", ".read_bytes", "zipfile.is_zipfile"},
        "files of ours, and digests of any bytes",
    ),
    "runtime/executors/payload.py": ({"pickle.loads", "cloudpickle.loads"}, "messages of our own workers"),
    "runtime/placement.py": (
        {"ruamel.yaml.YAML", ".read_text"},
        "the local file that places workers: at most 4 KiB of plain values, composed and never constructed",
    ),
}
MOST_EXEMPT = 11


def calls(tree: ast.Module) -> list[tuple[int, str]]:
    """Every listed call of a module: (line, name)."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update({alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names})
    for node in ast.walk(tree):  # `j = json`
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name) and node.value.id in names:
            names.update({part.id: names[node.value.id] for part in node.targets if isinstance(part, ast.Name)})
    found = [
        (node.lineno, "import *")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
    ]
    ours = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and (_imports_what_the_code_names(node) or _writes(node))
        for part in (node, node.func)
    }
    for node in ast.walk(tree):
        if id(node) in ours:
            continue
        # Not only calls: `map(json.loads, lines)` passes the function on.
        if (isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)) or _is_getattr(node):
            full = _full_name(node, names)
            if listed := _listed(full):
                found.append((node.lineno, listed))
            elif full.rpartition(".")[2] in UNCALLED and not full.startswith("windtunnel."):
                found.append((node.lineno, f".{full.rpartition('.')[2]}"))
        if isinstance(node, ast.keyword) and node.arg == "shell" and getattr(node.value, "value", True) is not False:
            found.append((node.value.lineno, "shell=True"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in METHODS:
            owner = _full_name(node.func.value, names)
            if owner not in NO_FILES and f"{owner}.{node.func.attr}" not in FUNCTIONS:
                found.append((node.lineno, f".{node.func.attr}"))
    return found


def _imports_what_the_code_names(node: ast.Call) -> bool:
    """True for `import_module("cv2")` and `import_module(f"windtunnel.{name}")`: no user names these."""
    if not ast.unparse(node.func).endswith("import_module") or not node.args:
        return False
    first = node.args[0]
    start = first.values[0] if isinstance(first, ast.JoinedStr) and first.values else first
    return isinstance(start, ast.Constant) and (start is first or str(start.value).startswith("windtunnel."))


def _writes(node: ast.Call) -> bool:
    """True for `open(path, "wb")`, `path.open("w")` and `zipfile.ZipFile(path, "w")`: nothing is read."""
    is_opened = ast.unparse(node.func).rpartition(".")[2] in {"open", "ZipFile"}
    modes = [part.value for part in node.args[:2] if isinstance(part, ast.Constant)]
    return is_opened and any(isinstance(mode, str) and mode in {"w", "x", "a", "wb", "xb", "ab"} for mode in modes)


def _listed(full: str) -> str:
    """Return the listed function that a full name is or ends in, as `windtunnel.boundary.text.json.loads` does; "" for none."""
    if any(full.startswith(f[:-1]) for f in FUNCTIONS if f.endswith("*")):
        return full
    parts = full.split(".")
    ends = (".".join(parts[start:]) for start in range(len(parts)))
    return next((end for end in ends if end in FUNCTIONS and (end == full or "." in end)), "")


def _is_getattr(node: ast.AST) -> bool:
    """True for `getattr(json, "loads")`."""
    return (
        isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr" and len(node.args) > 1
        and isinstance(node.args[1], ast.Constant)
    )  # fmt: skip


def _full_name(node: ast.expr, names: dict[str, str]) -> str:
    if isinstance(node, ast.Call) and _is_getattr(node):
        return f"{_full_name(node.args[0], names)}.{node.args[1].value}"  # type: ignore[attr-defined]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        is_import = ast.unparse(node.func).endswith(("import_module", "__import__"))
        return str(node.args[0].value) if is_import else "local"
    if isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("sys.modules"):
        return ast.unparse(node.slice).strip("'")
    if isinstance(node, ast.Name):
        return names.get(node.id, node.id if node.id in FUNCTIONS else f"local.{node.id}")
    if isinstance(node, ast.Attribute):
        return f"{_full_name(node.value, names)}.{node.attr}"
    return "local"


def _place(relative: str) -> Path:
    folder = ROOT if relative.startswith("pipeline/") else SOURCE
    return folder / relative


def offences(path: Path, text: str) -> list[str]:
    """The calls of a file that only `boundary` may make."""
    relative = path.relative_to(SOURCE if path.is_relative_to(SOURCE) else ROOT).as_posix()
    allowed = EXEMPT.get(relative, (set(), ""))[0]
    if relative.startswith("boundary/"):
        return []
    return [f"{relative}:{line}: {name}" for line, name in calls(ast.parse(text)) if name not in allowed]


def test_only_the_boundary_reads_what_comes_from_outside():
    files = [path for folder in SCANNED for path in sorted(folder.rglob("*.py"))]
    assert {"stages", "pipeline"} <= {path.relative_to(ROOT).parts[0] for path in files}
    found = [line for path in files for line in offences(path, path.read_text(encoding="utf-8"))]
    assert not found, "read it through windtunnel.boundary, or add an exemption with its reason:\n" + "\n".join(found)


def test_every_exemption_is_needed_and_has_a_reason():
    assert len(EXEMPT) <= MOST_EXEMPT
    for relative, (allowed, reason) in EXEMPT.items():
        made = {name for _, name in calls(ast.parse(_place(relative).read_text(encoding="utf-8")))}
        assert allowed <= made, f"{relative}: {allowed - made} is not called any more; take the exemption back"
        assert len(reason) > 10, relative


@pytest.mark.parametrize(
    "line",
    [
        "open(p)",
        "p.read_text()",
        "import numpy as np\nnp.load(p)",
        "from numpy import load as get\nget(p)",
        "import torch\ntorch.load(p)",
        "from json import loads\nmap(loads, lines)",
        "import json\njson.loads(t)",
        "from ruamel.yaml import YAML\nYAML(typ='safe').load(t)",
        "import onnx\nonnx.load(p)",
        "from PIL import Image\nImage.open(p)",
        "from importlib import import_module\nimport_module(n)",
        "import importlib\nimportlib.import_module(n)",
        "Model.from_pretrained(p)",
        "with p.open() as f: pass",
        "Record.model_validate_json(t)",
        "import zipfile\nzipfile.ZipFile(p)",
        "import vnnlib\nvnnlib.parse_query_string(t)",
        "p.open('r')",
        "open(p, 'r+b')",
        "def f():\n    import pickle\n    return pickle.loads(b)",
        "import json as j\nk = j\nk.loads(t)",
        "from windtunnel.boundary.text import json\njson.loads(t)",
        "import json\ngetattr(json, 'loads')(t)",
        "import sys\nsys.modules['json'].loads(t)",
        "__import__('json').loads(t)",
        "from json import *\nloads(t)",
        "from json import JSONDecoder as D\nD().decode(t)",
        "from pathlib import Path\nmap(Path.read_text, ps)",
        "import builtins as b\nb.open(p)",
        "import yaml\nyaml.full_load(t)",
        "import pickle\npickle.Unpickler(f).load()",
        "from numpy.lib import format as npy\nnpy.read_array(f)",
        "import sqlite3\nsqlite3.Connection(p)",
        "import urllib.request as u\nu.urlretrieve(a)",
        "import tarfile\ntarfile.TarFile(p)",
        "import onnx\nonnx.ModelProto.FromString(b)",
        "from onnxruntime import InferenceSession as S\nS(p)",
        "import importlib.machinery as m\nm.SourceFileLoader(n, p)",
        "from torch.serialization import load as l\nl(p)",
        "import codecs\ncodecs.open(p)",
        "import subprocess\nsubprocess.run(text, shell=True)",
        "import subprocess\nsubprocess.run(text, shell=is_text)",
        "from subprocess import getoutput\ngetoutput(t)",
        "import os\nos.system(t)",
        "import os\nos.execvp(t, w)",
        "import dvc.api\ndvc.api.read(p)",
        "from dvc.utils.serialize import load_yaml\nload_yaml(p)",
        "import mlflow\nmlflow.pyfunc.load_model(u)",
        "from mlflow import pyfunc\npyfunc.load_model(u)",
        "from mlflow.artifacts import load_dict\nload_dict(u)",
        "import pandas as pd\npd.read_parquet(p)",
        "spec.loader.exec_module(m)",
    ],
)
def test_such_a_call_is_found_wherever_it_is_added(line):
    for place in (SOURCE / "operations", ROOT / "stages", ROOT / "pipeline" / "schedules"):
        assert offences(place / "added.py", line)
    assert not offences(SOURCE / "boundary" / "added.py", line)
