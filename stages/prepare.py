"""Stage `prepare`: load, convert, check and choose the samples."""

from __future__ import annotations

from windtunnel.core.endings import user_errors
from windtunnel.core.layout import DATA
from windtunnel.inputs.data.load import load_dataset, save_datasets
from windtunnel.params.load import load_params


def main() -> None:
    """Write reports/data."""
    params = load_params()
    save_datasets(*load_dataset(params.data, params.seed), DATA)


if __name__ == "__main__":
    with user_errors():
        main()
