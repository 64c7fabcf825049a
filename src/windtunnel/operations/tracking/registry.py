"""The model registry: which assessed model is the champion, which one was before it, and how to move between them.

A version is one model with one assessment of it. Aliases say who is what: `champion`, `challenger`, `previous`. A version
keeps by tag which champion it replaced, so that a rollback needs no other memory.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windtunnel.boundary.mlflow_server import connect, tracking_uri
from windtunnel.boundary.models.record import Fetched, read_model
from windtunnel.boundary.text import parse_json
from windtunnel.core.errors import InfrastructureError, UserError
from windtunnel.operations.tracking.state import MAX_TAG, State, volatile_tags
from windtunnel.operations.tracking.store import deliver, logged_model
from windtunnel.operations.tracking.view import run_page
from windtunnel.params.results import Tracking
from windtunnel.records.gate import OUTCOMES_FILE, GateResult, Origin, OutcomeRecord, read_record
from windtunnel.records.layout import REPORTS, SUMMARY
from windtunnel.runtime.credentials import reason_at, without_credentials

if TYPE_CHECKING:
    from mlflow import MlflowClient

CHAMPION, CHALLENGER, PREVIOUS = "champion", "challenger", "previous"
_STATE, _REPLACED, _ROLLED_BACK = "windtunnel.state", "windtunnel.replaced", "windtunnel.rolled_back"


class RegistryError(InfrastructureError):
    """The registry cannot be reached or refused a request."""


@dataclass(frozen=True, slots=True)
class Version:
    """A registered model with its assessment. `run_id` is the parent run of that assessment."""

    model: str
    number: str
    run_id: str
    tags: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.model} version {self.number}"

    @property
    def uri(self) -> str:
        """Return its URI for `model.source: mlflow`."""
        return f"models:/{self.model}/{self.number}"

    @property
    def decision(self) -> str:
        """Return the gate's decision about it."""
        return self.tags.get("gate.decision", "unknown")


@dataclass(frozen=True, slots=True)
class Registry:
    """The versions of one registered model on one server. Every method raises RegistryError where that fails."""

    client: MlflowClient
    model: str
    uri: str

    def alias(self, name: str) -> Version | None:
        """Return the version that an alias names; None for none."""
        with self._asked():
            models = {m.name: m for m in self.client.search_registered_models(f"name = '{self.model}'")}
            number = models[self.model].aliases.get(name) if self.model in models else None
            return None if number is None else self._version(str(number))

    def version(self, number: str) -> Version:
        """Return a version by its number. Raises UserError where there is none."""
        by_number = {version.number: version for version in self.versions()}
        if number not in by_number:
            available = ", ".join(by_number) or "none: windtunnel promote makes the first"
            raise UserError(
                f"registry: {self.model} has no version {number} on {without_credentials(self.uri)} ({available})"
            )
        return by_number[number]

    def versions(self, tag: str | None = None, value: str = "") -> list[Version]:
        """All versions, the newest first; with `tag` only those where it has this value."""
        query = f"name = '{self.model}'" + (f" and tags.`{tag}` = '{value}'" if tag else "")
        with self._asked():
            found_versions = [_as_version(v) for v in self.client.search_model_versions(query)]
        return sorted(found_versions, key=lambda v: int(v.number), reverse=True)

    def record(self, version: Version) -> OutcomeRecord:
        """Return the outcomes of a version's own assessment, as a gate reads them; without any where its run holds none (any more)."""
        origin = Origin(model=version.model, version=version.number, run_id=version.run_id)
        outcomes_path = (SUMMARY / OUTCOMES_FILE).relative_to(REPORTS)
        with self._asked(), tempfile.TemporaryDirectory() as folder:
            uploaded = {
                file.path for file in self.client.list_artifacts(version.run_id, outcomes_path.parent.as_posix())
            }
            if (
                outcomes_path.as_posix() not in uploaded
            ):  # the gate then asks for a reassessment, and a retraining makes it
                return OutcomeRecord(version.tags.get("windtunnel.model_digest", ""), (), {}, origin)
            outcomes = read_record(
                Path(self.client.download_artifacts(version.run_id, outcomes_path.as_posix(), folder))
            )
        return OutcomeRecord(outcomes.model_digest, outcomes.samples, outcomes.outcomes, origin)

    def register(self, state: State, model: Path, gate: GateResult, reasons: list[str]) -> Version:
        """Log an assessed state and keep its model; a state is registered once, however often this is called.

        `model` is reports/model. Raises UserError for a model that has no weights of its own.
        """
        with self._asked():
            run_id, _ = deliver(state, self.uri, volatile_tags())
        existing = self.versions(_STATE, state.digest)
        if existing:
            return existing[0]
        tags = {
            _STATE: state.digest,
            "windtunnel.model_digest": state.model_digest,
            "assessment.run_id": run_id,
            "gate.decision": gate.decision.value,
            "gate.reasons": "; ".join(reasons)[:MAX_TAG],
        }
        with self._asked():
            experiment = self.client.get_run(run_id).info.experiment_id
            if self.uri.startswith("http"):
                tags["assessment.link"] = f"{without_credentials(self.uri)}/{run_page(experiment, run_id)}"
            logged = logged_model(self.client, run_id, state)
            model_id = _log_weights(logged, model, state.dataset.shape)
            if not self.client.search_registered_models(f"name = '{self.model}'"):
                self.client.create_registered_model(self.model)
            source = f"models:/{model_id}"
            created = self.client.create_model_version(self.model, source, run_id, tags=tags, model_id=model_id)
            self._link(logged, str(created.version))
            self.client.set_tag(run_id, "windtunnel.registered", f"{self.model} version {created.version}")
            return self._version(str(created.version))

    def challenge(self, version: Version) -> None:
        """Make a version the challenger."""
        with self._asked():
            self.client.set_registered_model_alias(self.model, CHALLENGER, version.number)

    def promote(self, version: Version) -> None:
        """Make a version the champion and the champion before it `previous`. A second call changes nothing."""
        champion, challenger = self.alias(CHAMPION), self.alias(CHALLENGER)
        with self._asked():
            if champion and champion.number != version.number:
                # What a rollback needs comes first, so that a kill in between loses no way back.
                self.client.set_model_version_tag(self.model, version.number, _REPLACED, champion.number)
                self.client.set_registered_model_alias(self.model, PREVIOUS, champion.number)
            if was_rolled_back(version):  # overruled
                self.client.delete_model_version_tag(self.model, version.number, _ROLLED_BACK)
            self.client.set_registered_model_alias(self.model, CHAMPION, version.number)
            if challenger and challenger.number == version.number:
                self.client.delete_registered_model_alias(self.model, CHALLENGER)

    def rollback(self) -> tuple[Version, Version]:
        """Return (the champion that is none any more, the one before it that is champion again). Raises UserError for no way back."""
        champion = self.alias(CHAMPION)
        if champion is None:
            raise UserError(f"registry: {self.model} has no champion on {without_credentials(self.uri)}")
        if _REPLACED not in champion.tags:
            raise UserError(f"registry: {champion} is the first champion; there is none before it")
        restored = self.version(champion.tags[_REPLACED])
        with self._asked():
            self.client.set_model_version_tag(self.model, champion.number, _ROLLED_BACK, "true")
            self.client.set_registered_model_alias(self.model, CHAMPION, restored.number)
            if _REPLACED in restored.tags:
                self.client.set_registered_model_alias(self.model, PREVIOUS, restored.tags[_REPLACED])
            else:
                self.client.delete_registered_model_alias(self.model, PREVIOUS)
        return champion, restored

    def tag(self, version: Version, key: str, value: str) -> None:
        """Set a tag of a version."""
        with self._asked():
            self.client.set_model_version_tag(self.model, version.number, key, value)

    def _link(self, model_id: str, number: str) -> None:
        """Name the version beside its model on MLflow's Models page. A server does so; a local store leaves it to the client."""
        tag = "mlflow.modelVersions"
        links: Any = parse_json(
            self.client.get_logged_model(model_id).tags.get(tag, "[]"), f"registry: {model_id}: {tag}"
        )
        if not any(str(link["version"]) == number and link["name"] == self.model for link in links):
            linked = json.dumps([*links, {"name": self.model, "version": int(number)}])
            self.client.set_logged_model_tags(model_id, {tag: linked})

    def _version(self, number: str) -> Version:
        return _as_version(self.client.get_model_version(self.model, number))

    @contextmanager
    def _asked(self) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except Exception as error:  # MLflow, its stores and its HTTP client raise many kinds for "did not answer"
            raise RegistryError(f"registry: {reason_at(self.uri, error)}") from error


def open_registry(tracking: Tracking) -> Registry:
    """Return the registry of the tracking store in params; makes no request yet."""
    uri = tracking_uri(tracking.uri)
    return Registry(connect(uri), tracking.registered_model, uri)


def was_rolled_back(version: Version) -> bool:
    """Return True if this version was taken out of service."""
    return version.tags.get(_ROLLED_BACK) == "true"


def _as_version(version: object) -> Version:
    from mlflow.entities.model_registry import ModelVersion

    assert isinstance(version, ModelVersion)
    return Version(str(version.name), str(version.version), str(version.run_id), dict(version.tags))


def _log_weights(model_id: str, directory: Path, shape: tuple[int, ...]) -> str:
    """Upload the weights in a form that holds no pickle; the id of the logged model that has them.

    It is `model_id`, the one whose metrics are tracked, so that MLflow ranks one model per digest; or the one of MLflow's that
    the weights came from.
    """
    record = read_model(directory)
    if record.source == "function":
        raise UserError("model.source: a function keeps no weights, so there is nothing to register")
    if isinstance(record, Fetched) and record.model_id:
        return record.model_id
    import mlflow
    import numpy as np
    import torch

    from windtunnel.boundary.models.backends import giving_logits
    from windtunnel.boundary.models.loaders import loader_of
    from windtunnel.boundary.models.trust import trust_of
    from windtunnel.boundary.params import load_params

    trust = trust_of(load_params().model)
    loaded = loader_of(record.source, trust)(record, directory, trust)
    # Two samples: torch.export takes a dimension of one for a constant. Requirements are named, not found out, since
    # MLflow would start another interpreter for that.
    example = np.zeros((2, *shape), np.float32)
    if loaded.onnx_path:
        from windtunnel.boundary.models.backends import read_graph

        mlflow.onnx.log_model(read_graph(loaded.onnx_path), model_id=model_id, pip_requirements=["onnxruntime"])
    else:
        module = loaded.module.eval()
        with torch.no_grad():  # a program's outputs are tensors, and `model.source: mlflow` expects logits of it
            module = giving_logits(module, module(torch.from_numpy(example)))
        mlflow.pytorch.log_model(
            module,
            model_id=model_id,
            input_example=example,
            serialization_format="pt2",
            pip_requirements=[f"torch=={torch.__version__.partition('+')[0]}"],
        )
    return model_id
