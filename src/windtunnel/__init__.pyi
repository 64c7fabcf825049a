"""Public names of `windtunnel`, each where it is defined: the one list of them, for type checkers and at run time."""

from windtunnel.boundary.params import load_params as load_params
from windtunnel.core.classifier import Classifier as Classifier
from windtunnel.core.dataset import Dataset as Dataset
from windtunnel.core.errors import UserError as UserError
from windtunnel.core.subject import Subject as Subject
from windtunnel.core.subject import subject_of as subject_of
from windtunnel.operations.api.result import Result as Result
from windtunnel.operations.api.run import assess as assess
from windtunnel.operations.api.run import attack as attack
from windtunnel.operations.api.run import autoattack as autoattack
from windtunnel.operations.api.run import corrupt as corrupt
from windtunnel.operations.api.run import read as read
from windtunnel.operations.api.run import verify as verify
from windtunnel.records.artifacts import Artifacts as Artifacts
from windtunnel.records.artifacts import read_artifacts as read_artifacts
from windtunnel.records.artifacts import write_artifacts as write_artifacts
from windtunnel.records.result import AssessmentResult as AssessmentResult

__version__: str
