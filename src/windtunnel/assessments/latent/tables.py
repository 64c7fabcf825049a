"""The tables of a latent assessment over several classifiers, written and read as these types. Quick to import."""

from __future__ import annotations

from collections.abc import Mapping

from windtunnel.records.metadata import Rate, Record, Value


class ClassifierMetrics(Record):
    """The metrics of one classifier, by name, beside what it is called."""

    __pydantic_extra__: dict[str, int | float]
    model: str

    @classmethod
    def of(cls, model: str, numbers: Mapping[str, Value]) -> ClassifierMetrics:
        """Return the metrics `numbers` of a classifier. Raises ValidationError where one is no number."""
        return cls.model_validate({"model": model, **numbers})

    @property
    def numbers(self) -> Mapping[str, float]:
        """The metrics."""
        return self.__pydantic_extra__


class Correlation(Record):
    """Pearson's and Spearman's coefficient of the metrics x and y over n classifiers; none where one of the two is constant."""

    x: str
    y: str
    n: int
    pearson: float | None = None
    pearson_ci_low: float | None = None
    pearson_ci_high: float | None = None
    spearman: float | None = None
    spearman_ci_low: float | None = None
    spearman_ci_high: float | None = None

    @property
    def of_pearson(self) -> Rate | None:
        """Pearson's coefficient with its interval."""
        return self.rate_of("pearson")

    @property
    def of_spearman(self) -> Rate | None:
        """Spearman's coefficient with its interval."""
        return self.rate_of("spearman")
