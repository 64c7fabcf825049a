"""Artifacts in a store that speaks S3, behind the tracking server: what compose.yaml sets up, with moto's server for the store."""

import subprocess
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer
from test_track import parents, write_state

from tests.mlflow_server import Server
from windtunnel.boundary.mlflow_server import connect
from windtunnel.operations.tracking.track import track

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
SECRETS = {"AWS_ACCESS_KEY_ID": "mlflow", "AWS_SECRET_ACCESS_KEY": "not-for-clients", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def bucket():
    """(address of the store, its bucket)."""
    store = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    store.start()
    address = "http://{}:{}".format(*store.get_host_and_port())
    names = dict(zip(("aws_access_key_id", "aws_secret_access_key", "region_name"), SECRETS.values(), strict=True))
    made = boto3.resource("s3", endpoint_url=address, **names).Bucket("mlflow")
    made.create()
    yield address, made
    store.stop()


def test_artifacts_lie_in_the_bucket_and_come_back_to_clients_without_credentials(
    bucket, tmp_path_factory, tmp_path, monkeypatch
):
    address, objects = bucket
    folder = tmp_path_factory.mktemp("server")
    server = Server(
        f"sqlite:///{folder / 'mlflow.db'}", folder, "s3://mlflow", {**SECRETS, "MLFLOW_S3_ENDPOINT_URL": address}
    )
    server.start()
    try:
        for name in (*SECRETS, "MLFLOW_S3_ENDPOINT_URL", "DVC_ROOT", "MLFLOW_RUN_ID"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
        monkeypatch.chdir(tmp_path)
        subprocess.run(["git", "init", "-q"], check=True)
        write_state("1/10", 0.4)
        assert track(strict=True).run
        client = connect(server.uri)
        (parent,), runs = parents(client)
        assert parent.info.artifact_uri.startswith("mlflow-artifacts:/")
        keys = {item.key.split("/artifacts/")[-1] for item in objects.objects.all()}
        assert {"params.yaml", "metrics.json", "gate.json", "metadata.json"} <= {key.rsplit("/", 1)[-1] for key in keys}
        back = client.download_artifacts(parent.info.run_id, "params.yaml", str(tmp_path_factory.mktemp("back")))
        assert Path(back).read_bytes() == (tmp_path / "params.yaml").read_bytes()
        assert len(runs) == 3
    finally:
        server.kill()
