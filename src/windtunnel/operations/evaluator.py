"""MLflow's evaluator `windtunnel`: the pipeline's assessments behind `mlflow.models.evaluate`, of a logged model on given data.

    mlflow.models.evaluate("models:/digits@champion", x, targets=y, model_type="classifier", evaluators="windtunnel",
                           evaluator_config={"budget": {"norm": "Linf", "epsilon": 0.06},
                                             "attacks": {"pgd": {"library": "torchattacks", "algorithm": "PGD"}}})

`evaluator_config` is a params.yaml without `data.source` and `model`: MLflow brings those. MLflow takes arrays of rows, so
images are flat; their shape comes from the model's signature, or from `evaluator_config["shape"]`.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import mlflow
import numpy as np
from mlflow.models.evaluation import EvaluationArtifact, EvaluationResult, ModelEvaluator
from pydantic import BaseModel, ValidationError

from windtunnel.boundary.data.load import convert
from windtunnel.boundary.data.sources import Raw
from windtunnel.boundary.models.load import import_model, load_classifier
from windtunnel.boundary.models.trust import trust_of
from windtunnel.core.errors import UserError
from windtunnel.core.subject import Subject, subject_of
from windtunnel.evaluation.validate import validate
from windtunnel.operations.api.pipeline import GIVEN, assess_subject
from windtunnel.params.load import mistakes_of
from windtunnel.params.schema import Params
from windtunnel.records.files import DATA_FILE, METADATA_FILE, read_own

if TYPE_CHECKING:
    from mlflow.data.evaluation_dataset import EvaluationDataset
    from mlflow.pyfunc import PyFuncModel

_OURS = ("data.source", "data.path", "data.function", "model")  # what MLflow brings


class _EvaluatorConfig(BaseModel):
    """Keys of `evaluator_config` that are read here; the rest is read as params.yaml."""

    data: dict[str, object] | None = None
    shape: tuple[int, ...] | None = None


class FileArtifact(EvaluationArtifact):  # type: ignore[misc]  # MLflow's class is untyped
    """A file of an assessment, by its address in the run; `content` is its bytes."""

    def _save(self, output_artifact_path: str) -> None:
        content: bytes = self._content
        Path(output_artifact_path).write_bytes(content)

    def _load_content_from_file(self, local_artifact_path: str) -> bytes:
        return read_own(Path(local_artifact_path))


class WindtunnelEvaluator(ModelEvaluator):  # type: ignore[misc]  # MLflow's class is untyped
    """Registered in the entry-point group `mlflow.model_evaluator`."""

    @classmethod
    def can_evaluate(cls, *, model_type: str, evaluator_config: Mapping[str, object], **kwargs: object) -> bool:
        """Classifiers alone."""
        return model_type == "classifier"

    def evaluate(
        self,
        *,
        model_type: str,
        dataset: EvaluationDataset,
        run_id: str,
        evaluator_config: Mapping[str, object],
        model: PyFuncModel | None = None,
        **kwargs: object,
    ) -> EvaluationResult:
        """Assess, log to the run, and return the flat metrics of metrics.json and every file of every assessment.

        Raises UserError, in one line, for a config that params.yaml would refuse, a model that is no torch or ONNX model
        of MLflow's, and data without labels or of another shape.
        """
        if model is None:
            raise UserError(
                "mlflow.models.evaluate: windtunnel needs the model itself; predictions alone cannot be attacked"
            )
        raw, inputs, labels = _as_params(model, dataset, evaluator_config)
        params, client = validate(raw, "evaluator_config"), mlflow.MlflowClient()
        with tempfile.TemporaryDirectory() as folder:
            result = assess_subject(params, _subject(params, inputs, labels, Path(folder) / "model"), None)
            reports, artifacts = result.save(folder), {}
            for path in sorted(
                p for p in reports.rglob("*") if p.suffix == ".png" or p.name in (DATA_FILE, METADATA_FILE)
            ):
                below = Path("windtunnel") / path.parent.relative_to(reports)
                client.log_artifact(run_id, str(path), artifact_path=below.as_posix())
                name = f"windtunnel/{path.relative_to(reports).as_posix()}"
                artifacts[name] = FileArtifact(uri=f"runs:/{run_id}/{name}", content=read_own(path))
        for name, value in result.metrics.items():
            client.log_metric(run_id, name, value)
        return EvaluationResult(metrics=result.metrics, artifacts=artifacts, run_id=run_id)


def _subject(params: Params, inputs: np.ndarray, labels: np.ndarray, directory: Path) -> Subject:
    """Return the model and the samples as the stages `prepare` and `train` leave them; the weights go to `directory`."""
    raw = Raw(inputs, labels, [f"{i:05d}" for i in range(len(inputs))], (0.0, 1.0))
    dataset, _ = convert(params.data, params.seed, raw, None)
    import_model(params.model, None, params.seed, params.device, directory, mlflow.get_tracking_uri(), dataset)
    classifier = load_classifier(directory, params.device, dataset, trust_of(params.model))
    return subject_of(classifier, dataset, params.seed)


def _as_params(
    model: PyFuncModel, dataset: EvaluationDataset, config: Mapping[str, object]
) -> tuple[dict[str, object], np.ndarray, np.ndarray]:
    """Return (the content of params.yaml, inputs (N, *shape) float32, labels (N,) int64)."""
    try:
        settings = _EvaluatorConfig.model_validate(config)
    except ValidationError as error:
        raise UserError(mistakes_of(error, "evaluator_config")) from error
    raw = {key: value for key, value in config.items() if key != "shape"}
    data = settings.data or {}
    if keys := [key for key in _OURS if key in raw or key.removeprefix("data.") in data]:
        raise UserError(f"evaluator_config: {', '.join(keys)}: mlflow.models.evaluate brings the model and the data")
    labels = dataset.labels_data
    if labels is None:
        raise UserError("mlflow.models.evaluate: targets are needed: without labels robustness cannot be measured")
    rows = np.asarray(dataset.features_data, dtype=np.float32)
    shape = settings.shape or _signature_shape(model) or (rows.shape[1],)
    if int(np.prod(shape)) != rows.shape[1]:
        raise UserError(f"evaluator_config.shape: {list(shape)} does not hold the {rows.shape[1]} numbers of a row")
    raw["data"] = {**data, "source": "function", "function": GIVEN}
    raw["model"] = {"source": "mlflow", "uri": _uri_of(model)}
    return raw, rows.reshape(-1, *shape), np.asarray(labels).astype(np.int64)


def _signature_shape(model: PyFuncModel) -> tuple[int, ...] | None:
    signature = model.metadata.signature
    if signature is None or signature.inputs is None or not signature.inputs.is_tensor_spec():
        return None
    return tuple(int(side) for side in signature.inputs.inputs[0].shape[1:])


def _uri_of(model: PyFuncModel) -> str:
    if model.model_id:
        return f"models:/{model.model_id}"
    return f"runs:/{model.metadata.run_id}/{model.metadata.artifact_path}"
