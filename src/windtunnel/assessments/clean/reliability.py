"""The reliability diagram among the metrics of the clean evaluation, written and read as one type."""

from __future__ import annotations

from windtunnel.records.metadata import Record


class ConfidenceBins(Record):
    """Mean confidence and accuracy of the samples of each bin of confidence, 0 for an empty one, and how many they are."""

    confidence: tuple[float, ...] = ()
    accuracy: tuple[float, ...] = ()
    count: tuple[int, ...] = ()

    @property
    def filled(self) -> list[tuple[float, float, int]]:
        """(confidence, accuracy, count) of each bin with samples."""
        return [line for line in zip(self.confidence, self.accuracy, self.count, strict=True) if line[2]]
