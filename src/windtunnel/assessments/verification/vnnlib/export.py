"""Every sample of a verification as an instance of the competition's format: the graph, specifications, instances.csv."""

import shutil
from pathlib import Path

from windtunnel.assessments.verification.marabou.queries import check_equivalence
from windtunnel.boundary.models.load import export_onnx
from windtunnel.boundary.vnnlib_text import robustness
from windtunnel.core.contracts import Norm
from windtunnel.core.errors import IncompatibleError, UserError
from windtunnel.core.subject import Subject

_TIMEOUT = 60.0  # seconds, where the entry sets none


def export_instances(
    name: str, subject: Subject, norm: Norm, epsilon: float, timeout: float | None, folder: Path
) -> list[Path]:
    """Write model.onnx, a specification for each sample and instances.csv into `folder`, which is new or empty.

    timeout: seconds for one sample, of the entry. Raises UserError for a folder with files, IncompatibleError for a norm that
    is no box and for a model that has no graph.
    """
    where = f"verification.{name}"
    subject.classifier.criterion.require_top_1(where, "VNN-LIB instances here say that the label is the largest logit")
    if norm is not Norm.LINF:
        raise IncompatibleError(f"{where}: VNN-LIB describes boxes; the budget is {norm}, set norm: Linf")
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder}: is not empty; name another folder")
    (folder / "vnnlib").mkdir(parents=True, exist_ok=True)
    graph, classifier, data = folder / "model.onnx", subject.classifier, subject.dataset
    if classifier.onnx_path:
        shutil.copyfile(classifier.onnx_path, graph)
    else:
        try:
            export_onnx(classifier, graph)
        except Exception as error:  # the exporter raises many kinds for what it cannot trace
            reason = " ".join(str(error).split())[:200]
            raise IncompatibleError(
                f"{where}: {classifier.source} has no ONNX graph ({type(error).__name__}: {reason})"
            ) from error
    check_equivalence(classifier, graph, data.inputs)
    written = []
    for inputs, target, sample in zip(data.inputs.flatten(1).double(), data.targets.tolist(), data.ids, strict=True):
        path = folder / "vnnlib" / f"{_as_file_name(sample)}.vnnlib"
        low, high = ((inputs + side * epsilon).clamp(0, 1) for side in (-1, 1))
        title = f"{name}: sample {sample} of class {target}, Linf {epsilon:g}, cut off at [0, 1]"
        path.write_text("\n".join(robustness(low, high, target, classifier.num_classes, title)) + "\n")
        written.append(path)
    lines = [f"model.onnx,vnnlib/{path.name},{timeout or _TIMEOUT:g}" for path in written]
    (folder / "instances.csv").write_text("\n".join(lines) + "\n")
    return written


def _as_file_name(sample: str) -> str:
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in sample)
