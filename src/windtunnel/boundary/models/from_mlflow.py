"""Models kept by MLflow, fetched by their URI."""

import shutil
import tempfile
from pathlib import Path

from windtunnel.boundary.mlflow_server import connect, tracking_uri
from windtunnel.core.contracts import Json
from windtunnel.core.errors import UserError
from windtunnel.records.files import file_digest, replacing
from windtunnel.registry.plugins import is_installed
from windtunnel.runtime.credentials import reason_of, without_credentials
from windtunnel.runtime.missing_package import not_installed

# What MLflow's flavours write, the safe forms first: (file in the model's folder, the form it is loaded as).
_FORMS = (("model.onnx", "onnx"), ("data/model.pt2", "export"), ("data/model.pth", "pickle"))
_PREFIXES = ("models:/", "runs:/", "mlflow-artifacts:/")


def fetch_model(uri: str, directory: Path, *, allow_pickle: bool, server: str | None = None) -> dict[str, Json]:
    """Copy the model at `uri` (models:/name@alias, models:/name/3, runs:/id/model) into `directory`.

    Returns what model.json keeps: uri, the MLflow run and model it resolved to, form (onnx, export or pickle), file,
    sha256. `server` is `tracking.uri`; MLFLOW_TRACKING_URI wins. Raises UserError where the model is unavailable, holds
    neither a torch nor an ONNX model, or holds a pickle that `allow_pickle` does not allow.
    """
    if not uri.startswith(_PREFIXES):
        raise UserError(f"model.uri: '{uri}' is no MLflow URI; models:/name@alias or runs:/id/model are")
    if not is_installed("mlflow"):
        raise not_installed("mlflow")
    address = tracking_uri(server)
    connect(address)
    import mlflow
    from mlflow.models import Model as MlflowModel

    with tempfile.TemporaryDirectory() as folder:
        try:
            local = Path(mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=folder))
            packaged = MlflowModel.load(str(local))
            run = packaged.run_id or (packaged.model_id and mlflow.get_logged_model(packaged.model_id).source_run_id)
        except Exception as error:  # MLflow, its stores and its HTTP client raise many kinds for "is unavailable"
            where, reason = without_credentials(address), reason_of(error) or type(error).__name__
            raise UserError(f"model.uri: {uri} is unavailable from {where} ({reason})") from error
        form_file = next(((local / name, form) for name, form in _FORMS if (local / name).is_file()), None)
        if form_file is None:
            flavours = ", ".join(sorted(packaged.flavors)) or "none"
            raise UserError(f"model.uri: {uri} has flavours {flavours}; log it by mlflow.pytorch or mlflow.onnx")
        path, form = form_file
        if form == "pickle" and not allow_pickle:
            raise UserError(
                f"model.uri: {uri} holds a pickle, which can run any code when loaded; set model.allow_pickle: true if "
                f"you trust it, or log it with serialization_format='pt2'"
            )
        weights = directory / f"weights{path.suffix}"
        with replacing(weights) as temporary:
            shutil.copyfile(path, temporary)
        for side in path.parent.glob("*.data"):  # weights that an ONNX graph keeps beside itself, found by their name
            shutil.copyfile(side, directory / side.name)
    facts: dict[str, Json] = {"uri": uri, "run_id": run, "model_id": packaged.model_id}
    return {**facts, "form": form, "file": weights.name, "sha256": file_digest(weights), "original": uri}
