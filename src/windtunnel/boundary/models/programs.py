"""torch.export programs (.pt2) from strangers, read so that nothing in them can run.

`torch.export.load` of torch 2.13 unpickles sample inputs, weights and constants without `weights_only`, evaluates the
text of symbolic sizes (sympy's sympify), executes `guards_code`, imports modules that a tree names, loads compiled
libraries, and calls whatever function below `torch` a node names. Here an archive is checked first and then copied:
what torch reads is what was checked, whatever two readers of zip files make of odd ones.
"""

import ast
import io
import json
import logging
import operator
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.ao.quantization.fx._decomposed  # the operators of quantized_decomposed are there once it is imported
from torch import Tensor, fx, nn

from windtunnel.core.contracts import Caveat, Json

# The files of an archive, below its one top folder, that a plain program has.
_MEMBERS = re.compile(
    r"archive_format|archive_version|byteorder|version|\.data/\w+|\.format_version|\.storage_alignment|models/model\.json"
    r"|data/weights/(weight_\d+|model_weights_config\.json)|data/constants/(tensor_\d+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt"
)
_SAMPLE = "data/sample_inputs/model.pt"
_NAMESPACES = {"aten", "prims", "quantized", "quantized_decomposed", "torchvision"}
# Of aten: it opens, and with shared=True writes, the file of its name.
_NEVER = {"aten::from_file"}
_HIGHER_ORDER = {"wrap_with_set_grad_enabled", "wrap_with_autocast", "cond"}
_OPERATORS = frozenset(
    """
    add sub mul truediv floordiv mod pow neg pos abs eq ne lt le gt ge and_ or_ xor not_ invert lshift rshift
    getitem index
    """.split()
)
_MATH = {"ceil", "floor", "trunc", "sqrt", "log", "log2", "exp", "pow", "fabs", "prod"}
# What symbolic sizes are written with: sympy's classes and torch's own, and names of symbols such as s77 and u0.
_WORDS = frozenset(
    """
    Symbol Integer Float Rational Add Mul Pow Max Min Mod Abs Eq Ne Equality Unequality Gt Ge Lt Le
    StrictGreaterThan StrictLessThan GreaterThan LessThan And Or Not true false oo int_oo zoo FloorDiv CleanDiv
    CeilDiv ModularIndexing PythonMod Where IntTrueDiv FloatTrueDiv FloatPow PowByNatural TruncToInt TruncToFloat
    CeilToInt FloorToInt RoundToInt ToFloat Identity One Zero NegativeOne Half Infinity
    """.split()
)
_SYMBOL = re.compile(r"[a-z]{1,3}\d+")
_OPERATIONS = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.operator, ast.unaryop, ast.cmpop, ast.boolop)
_VALUES = (ast.Expression, ast.Call, ast.Name, ast.Load, ast.Constant, ast.keyword, ast.Tuple, ast.List)
_PLAIN_NODES = (*_OPERATIONS, *_VALUES)
_NAME = re.compile(r"[\w.+-]*")
_FREE_TEXT = {"as_string", "expr_str", "in_spec", "out_spec"}  # quoted where it is used, or checked by itself
_UNNEEDED: dict[str, Json] = {"metadata": {}, "guards_code": []}
_CONTEXT = re.compile(r'None|null|\[("\w+"(, "\w+")*)?\]')  # of a tree: nothing, or the keys of a dictionary
_TREES = {None, "builtins.tuple", "builtins.list", "builtins.dict"}
_DETACH = frozenset({torch.ops.aten.detach.default, torch.ops.aten.detach_.default})


class Refused(ValueError):
    """Something in the file could run code. One line that says what."""


def read_program(path: Path, *, allow_pickle: bool = False) -> nn.Module:
    """Return the module of a .pt2 file; everything it holds was checked unless `allow_pickle` says that the file is trusted.

    Raises Refused for what could run code, and whatever torch raises for a file that is no program.
    """
    source: Path | io.BytesIO = path if allow_pickle else io.BytesIO(_checked_copy(path))
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # of a damaged file torch logs a traceback before it raises
    try:
        return torch.export.load(source).module()
    finally:
        logging.disable(before)


def _checked_copy(path: Path) -> bytes:
    """Return the archive again, with only what was checked in it."""
    copy = io.BytesIO()
    with zipfile.ZipFile(path) as archive, zipfile.ZipFile(copy, "w", zipfile.ZIP_STORED) as checked:
        names = [info.filename for info in archive.infolist() if not info.is_dir()]
        if len(set(names)) < len(names):
            raise Refused("holds two files of one name")
        if sum(info.file_size for info in archive.infolist()) > 4 * path.stat().st_size + 2**20:
            raise Refused("says it is far larger than the file is")
        tops = {name.partition("/")[0] for name in names}
        if len(tops) != 1:
            raise Refused("was written by another version of torch (its files are not in one folder): export it again")
        for name in names:
            below = name.partition("/")[2]
            if not _MEMBERS.fullmatch(below):
                raise Refused(f"holds {below[:80]}, which is no part of a plain program")
            content = archive.read(name)
            if below.endswith(".json"):
                content = json.dumps(_checked_json(json.loads(content))).encode()
            elif below == _SAMPLE:
                _check_sample(content)
            checked.writestr(name, content)
    return copy.getvalue()


def _check_sample(content: bytes) -> None:
    try:
        torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many kinds for what weights_only refuses
        raise Refused("keeps its sample inputs as a pickle that is not of plain tensors") from error


def _checked_json(value: Json, key: str = "") -> Json:
    """Return a value of a JSON file again, without what torch would execute and nobody needs: guards and the nodes' metadata.

    Names become Python code of the graph's module, so they hold nothing but letters, digits and a few signs.
    """
    if isinstance(value, list):
        return [_checked_json(item, key) for item in value]
    if isinstance(value, str) and key not in _FREE_TEXT and not _NAME.fullmatch(value):
        raise Refused(f"has the name {value[:60]!r}")
    if not isinstance(value, dict):
        return value
    _check_block(value)
    if strange := [name for name in value if not _NAME.fullmatch(name)]:
        raise Refused(f"has the name {strange[0][:60]!r}")
    return {name: _UNNEEDED[name] if name in _UNNEEDED else _checked_json(item, name) for name, item in value.items()}


def _check_block(block: Mapping[str, Json]) -> None:
    if block.get("use_pickle"):
        raise Refused("keeps a weight or a constant as a pickle")
    for name in ("custom_obj_values", "treespec_namedtuple_fields", "__enum__"):
        if block.get(name):
            raise Refused("holds objects that are no tensors")
    if "expr_str" in block:
        _check_expression(str(block["expr_str"]))
    if "target" in block and "inputs" in block and "outputs" in block:
        _check_target(str(block["target"]))
    for name in ("in_spec", "out_spec"):
        if block.get(name):
            _check_tree(str(block[name]))


def _check_expression(text: str) -> None:
    """Refuse a symbolic size unless it is calls of known names on numbers and symbols, without attribute or subscript."""
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise Refused(f"has a size that is no expression ({text[:60]!r})") from error
    for node in ast.walk(tree):
        is_allowed = isinstance(node, _PLAIN_NODES)
        if isinstance(node, ast.Name):
            is_allowed = node.id in _WORDS or _SYMBOL.fullmatch(node.id) is not None
        elif isinstance(node, ast.Call):
            is_allowed = isinstance(node.func, ast.Name) and node.func.id in _WORDS
        elif isinstance(node, ast.Constant):
            is_allowed = isinstance(node.value, bool | int | float) or _SYMBOL.fullmatch(str(node.value)) is not None
        if not is_allowed:
            raise Refused(f"has a size that is more than arithmetic ({text[:60]!r})")


def _check_target(target: str) -> None:
    """Return what a node calls: an operator on tensors, or arithmetic on sizes."""
    first, *rest = target.split(".")
    allowed = False
    if first == "_operator":
        allowed = len(rest) == 1 and rest[0] in _OPERATORS and hasattr(operator, rest[0])
    elif first == "math":
        allowed = len(rest) == 1 and rest[0] in _MATH
    elif first == "torch" and len(rest) == 1:
        allowed = re.fullmatch(r"_?sym_[a-z_]+", rest[0]) is not None
    elif first == "torch" and rest[:2] == ["ops", "higher_order"]:
        allowed = len(rest) == 3 and rest[2] in _HIGHER_ORDER
    elif first == "torch" and len(rest) == 4 and rest[0] == "ops" and rest[1] in _NAMESPACES:
        overload = getattr(getattr(getattr(torch.ops, rest[1]), rest[2], None), rest[3], None)
        allowed = isinstance(overload, torch._ops.OpOverload) and overload._schema.name not in _NEVER
    if not allowed:
        raise Refused(f"calls {target[:80]}, which is no operator on tensors")


def _check_tree(text: str) -> None:
    """Refuse arguments and results that are not tuples, lists and dictionaries."""
    json.loads(text, object_hook=_check_tree_block)


def _check_tree_block(block: Mapping[str, Json]) -> Mapping[str, Json]:
    if block.get("type") not in _TREES or not _CONTEXT.fullmatch(str(block.get("context"))):
        raise Refused(f"nests its arguments in a {str(block.get('type'))[:60]} of {str(block.get('context'))[:60]}")
    return block


# Gradients of programs that cut them off: `no_grad` and `detach` change no value, so they can go


def open_gradients(program: nn.Module) -> list[str]:
    """Take `no_grad` and `detach` out of a program, in place; the names of what was taken out.

    Every value stays, bit by bit: detach gives its argument, and the mode of autograd decides no number.
    """
    operators = []
    for part in program.modules():
        if not isinstance(part, fx.GraphModule):
            continue
        for node in list(part.graph.nodes):
            if node.op != "call_function":
                continue
            if str(node.target) == "wrap_with_set_grad_enabled" and node.args[0] is False:
                node.args = (True, *node.args[1:])
                operators.append("no_grad")
            elif node.target in _DETACH:
                node.replace_all_uses_with(node.args[0])
                part.graph.erase_node(node)
                operators.append("detach")
        part.recompile()
    return sorted(set(operators))


def opened(cuts: list[str]) -> Caveat:
    """Return the caveat on gradients that the program itself does not give."""
    return Caveat(
        "converted_model",
        f"The torch.export program cuts off its gradients ({', '.join(cuts)}). They are restored for attacks and bounds, which changes no "
        f"logit.",
    )


def cutting_operator(module: nn.Module, sample: Tensor) -> str:
    """Return the first operator of a program whose output no gradient comes back from, for `sample` (1, *shape); empty for none."""
    graphs = [part for part in module.modules() if isinstance(part, fx.GraphModule)]
    if not graphs:
        return ""
    cuts = _Cuts(graphs[0])
    with torch.enable_grad():
        cuts.run(sample.clone().requires_grad_())
    return cuts.first


class _Cuts(fx.Interpreter):
    """Notes the first node that is given a tensor with a gradient and gives one without."""

    def __init__(self, graph: fx.GraphModule) -> None:
        super().__init__(graph)
        self.first = ""

    def run_node(self, n: fx.Node) -> object:
        """Compute the value of a node."""
        value = super().run_node(n)
        inputs = [self.env[node] for node in n.all_input_nodes if n.op == "call_function" and node in self.env]
        cut = isinstance(value, Tensor) and not value.requires_grad
        if not self.first and cut and any(isinstance(x, Tensor) and x.requires_grad for x in inputs):
            self.first = str(getattr(n.target, "__name__", n.target)).split(".")[0]
        return value
