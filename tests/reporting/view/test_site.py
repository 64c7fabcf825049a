"""The sample browser's files: every sample of every run, matched by name, as text that cannot become markup."""

import base64
import http.client
import io
import json
import signal
import socket
import struct
import threading

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from tests.reporting.report.conftest import edit, write_run
from windtunnel.cli.runs import view
from windtunnel.records.artifacts import load_tensors, read_artifacts, save_tensors
from windtunnel.reporting.compare.runs import run_in
from windtunnel.reporting.view.serve import ViewServer
from windtunnel.reporting.view.site import NONE, STATUSES, collect, site, statuses


@pytest.fixture(scope="module")
def original(digits_subject, tmp_path_factory):
    return write_run(digits_subject.subset(torch.arange(20)), tmp_path_factory.mktemp("reports"))


def said(script):
    """What a script of the page hands over: (name, values)."""
    name, rest = script.decode().removeprefix("windtunnel.").removesuffix(");").split("(", 1)
    return name, json.loads(f"[{rest}]")


def numbers(text, kind):
    return np.frombuffer(base64.b64decode(text), kind)


def test_the_core_holds_every_sample_and_its_status(original):
    _, (core,) = said(site([run_in(original, "one")])["core.js"]())
    summary = read_artifacts(original / "summary")
    assert core["names"].split("\n") == summary.sample_names
    assert numbers(core["targets"], "<u2").tolist() == summary.tensor("targets").tolist()
    found = [STATUSES[i] for i in numbers(core["statuses"][0], np.uint8)]
    wrong = summary.tensor("clean_predictions") != summary.tensor("targets")
    for words, broken, misclassified in zip(found, summary.tensor("verdicts") == 1, wrong, strict=True):
        assert words == ("misclassified" if misclassified else "broken" if broken else "survived")


def test_a_column_holds_what_an_assessment_found(original):
    files = site([run_in(original, "one")])
    name, (index, column) = said(files["column-1.js"]())
    pair = load_tensors(original / "robustness" / "pair" / "robustness_data.pt")
    assert (name, index) == ("column", 1)
    assert numbers(column["verdict"], np.uint8).tolist() == pair["verdicts"].tolist()
    assert numbers(column["numbers"]["distance"], "<f4") == pytest.approx(
        pair["perturbation_distance"].numpy(), nan_ok=True
    )


def test_the_page_names_the_run_its_budget_and_what_can_be_filtered(original):
    _, (core,) = said(site([run_in(original, "one")])["core.js"]())
    about = core["runs"][0]["about"]
    assert core["title"] == "Robustness assessment"
    assert "20 samples" in about
    assert "Linf" in about
    for index, source in enumerate(core["sources"]):
        _, (_, column) = said(site([run_in(original, "one")])[f"column-{index}.js"]())
        assert set(source["numbers"]) == set(column["numbers"])
        assert source["verdicts"] == sorted(set(numbers(column["verdict"], np.uint8).tolist()))


def test_the_nearest_examples_are_of_the_broken_samples_alone(original):
    files = site([run_in(original, "one")])
    _, (core,) = said(files["core.js"]())
    index = [source["name"] for source in core["sources"]].index(core["nearest"])
    _, (_, column) = said(files[f"column-{index}.js"]())
    summary = read_artifacts(original / "summary")
    broken = numbers(core["statuses"][0], np.uint8) == STATUSES.index("broken")
    assert 0 < broken.sum() < len(broken)
    assert (numbers(column["verdict"], np.uint8) > 0).tolist() == broken.tolist()
    assert ((numbers(column["answer"], "<u2") != NONE) == broken).all()
    wanted = np.where(broken, summary.tensor("perturbation_distance").numpy(), np.nan)
    assert numbers(column["numbers"]["distance"], "<f4") == pytest.approx(wanted, nan_ok=True)


def test_photographs_have_large_pictures_a_bundle_those_of_nearest_examples(tmp_path):
    run = run_in(photographs(tmp_path / "run"), "run")
    served, bundle = site([run], served=True), site([run])
    _, (core,) = said(bundle["core.js"]())
    assert core["large"] == {"tile": [100, 80], "sources": [1]}
    assert sorted(name for name in bundle if name.startswith("large/")) == [
        f"large/{name}-{block}{change}.png"
        for name, changes in (("1", ("-change", "")), ("clean", ("",)))
        for block in (0, 1)
        for change in changes
    ]
    assert "large/0-0.png" in served
    picture = np.asarray(Image.open(io.BytesIO(bundle["large/clean-1.png"]())))
    image = load_tensors(tmp_path / "run/summary/robustness_data.pt")["clean_inputs"][4, 0]
    assert np.array_equal(picture[:80, :100], (image * 255).round().byte().numpy())


def photographs(folder):
    """Write a run of five images of 80 x 100 pixels with one attack; its folder."""
    from benchmarks.view import write_run as random_run

    random_run(folder, 5, 1)
    for directory in (folder / "summary", folder / "robustness/attack_0"):
        path = directory / "robustness_data.pt"
        images = torch.rand(5, 1, 80, 100, generator=torch.Generator().manual_seed(1))
        save_tensors({**load_tensors(path), "clean_inputs": images, "perturbed_inputs": 1 - images}, path)
    return folder


def test_a_sheet_holds_the_clean_images_pixel_by_pixel(original):
    sheet = np.asarray(Image.open(io.BytesIO(site([run_in(original, "one")])["sheets/clean-0.png"]())))
    images = read_artifacts(original / "summary").tensor("clean_inputs")
    height, width = images.shape[-2:]
    for i in (0, 7, 19):
        row, column = divmod(i, 16)
        tile = sheet[row * height : (row + 1) * height, column * width : (column + 1) * width]
        assert np.array_equal(tile, (images[i, 0] * 255).round().byte().numpy())


def test_another_run_is_matched_by_name_and_what_it_lacks_has_no_verdict(original, digits_subject, tmp_path):
    half = write_run(digits_subject.subset(torch.arange(9, -1, -1)), tmp_path / "half")
    samples = collect([run_in(original, "all"), run_in(half, "half")])
    source = next(s for s in samples.sources if s.run == "half" and s.name == "pair")
    verdicts = source.spread("verdicts", 0)
    mine = dict(zip(read_artifacts(half / "summary").sample_names, read_artifacts(half / "robustness/pair").tensor("verdicts").tolist(),
                    strict=True))  # fmt: skip
    assert [int(v) for v in verdicts] == [mine.get(name, 0) for name in samples.names]
    assert STATUSES[statuses(samples, "half")[15]] == ""


def test_a_summary_of_an_older_version_and_a_missing_answer_are_told(original, tmp_path):
    import shutil

    folder = shutil.copytree(original, tmp_path / "reports")
    data = load_tensors(folder / "summary" / "robustness_data.pt")
    i = int((data["verdicts"] == 1).nonzero()[0])
    del data["sample_states"]
    data["certified_verdicts"][i] = 3
    data["clean_predictions"][i] = data["targets"][i]
    save_tensors(data, folder / "summary" / "robustness_data.pt")
    pair = load_tensors(folder / "robustness/pair/robustness_data.pt")
    pair["perturbed_predictions"][0] = -1
    save_tensors(pair, folder / "robustness/pair/robustness_data.pt")
    run = run_in(folder, "one")
    assert STATUSES[statuses(collect([run]), "one")[i]] == "broken"
    _, (_, column) = said(site([run])["column-1.js"]())
    assert numbers(column["answer"], "<u2")[0] == NONE


def test_hidden_names_stay_hidden_and_a_script_in_a_name_stays_text(original, tmp_path):
    import shutil

    folder = shutil.copytree(original, tmp_path / "reports")
    evil = "</script><script>alert(1)</script>\u2028"
    edit(folder / "summary/metadata.json", lambda m: m["kwargs"].update(class_names=[evil] * 10))
    script = site([run_in(folder, "one")])["core.js"]()
    assert "\u2028" not in script.decode()
    _, (core,) = said(script)
    assert core["classes"][0] == evil
    edit(folder / "summary/metadata.json", lambda m: m["kwargs"].update(show_sample_names=False))
    _, (core,) = said(site([run_in(folder, "one")])["core.js"]())
    assert core["names"].startswith("sample 1\nsample 2")


@pytest.fixture
def httpd(original):
    httpd = ViewServer(site([run_in(original, "one")], served=True), "127.0.0.1", 0)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
    yield httpd
    httpd.shutdown()
    httpd.server_close()


def ask(httpd, path, **headers):
    """Status, headers and body of an answer; no redirect is followed."""
    connection = http.client.HTTPConnection("127.0.0.1", httpd.server_port, timeout=10)
    connection.request("GET", path, headers={key.replace("_", "-"): value for key, value in headers.items()})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()


def test_the_server_has_the_files_of_the_page_and_nothing_else(httpd):
    cookie = f"{httpd.cookie}={httpd.token}"
    for path, kind in (("/", "text/html"), ("/core.json", "application/json"), ("/sheets/clean-0.png", "image/png")):
        status, headers, _ = ask(httpd, path, Cookie=cookie)
        assert (status, headers["Content-Type"].split(";")[0]) == (200, kind)
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["X-Frame-Options"] == "DENY"
    for path in ("/../params.yaml", "/etc/passwd", "/%2e%2e/params.yaml", "/sheets/clean-99.png", "/core.js", "//x"):
        assert ask(httpd, path, Cookie=cookie)[0] == 404


def test_only_a_browser_that_opened_the_printed_address_sees_the_samples(httpd):
    for headers in ({}, {"Cookie": f"{httpd.cookie}=wrong"}, {"Cookie": "a=b; ;;\x7f="}):
        assert [ask(httpd, path, **headers)[0] for path in ("/", "/core.json", "/?token=wrong", "/view.js")] == [
            403
        ] * 4
    status, headers, _ = ask(httpd, httpd.address.split(str(httpd.server_port))[1])
    assert (status, headers["Location"]) == (303, "/")  # the token leaves the address: a link holds the fragment alone
    assert "HttpOnly" in headers["Set-Cookie"]
    assert "SameSite=Lax" in headers["Set-Cookie"]
    assert ask(httpd, "/", Cookie=headers["Set-Cookie"].split(";")[0])[0] == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8008",
        "127.0.0.1.evil.example",
        "",
        "[",
        "10.0.0.1",
        "me@127.0.0.1",
        "127.0.0.1/x",
        "127.0.0.1#x",
    ],
)
def test_a_foreign_host_is_refused_whatever_it_knows(httpd, host):
    assert ask(httpd, "/", Host=host, Cookie=f"{httpd.cookie}={httpd.token}")[0] == 421


def test_odd_requests_and_browsers_that_leave_are_answered_without_a_traceback(httpd, capfd, monkeypatch):
    cookie = f"Cookie: {httpd.cookie}={httpd.token}\r\n"
    own, leaves = "Host: 127.0.0.1\r\n", struct.pack("ii", 1, 0)  # by a reset
    for request, status in (
        (f"GET http://evil.example/core.json HTTP/1.1\r\n{own}", 421),
        (f"GET http://127.0.0.1/core.json HTTP/1.1\r\n{own}", 200),
        (f"GET /..%2f..%2fparams.yaml HTTP/1.1\r\n{own}", 404),
        (f"GET /\\..\\params.yaml HTTP/1.1\r\n{own}", 404),
        (f"DELETE /core.json HTTP/1.1\r\n{own}", 501),
        (f"GET / HTTP/1.1\r\n{own} evil.example\r\n", 421),
        (f"GET / HTTP/1.1\r\n{own}X: {'a' * 70_000}\r\n", 431),
        ("GET / HTTP/1.1\r\n", 421),
        ("GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n", 421),
        ("GET http://[x/ HTTP/1.1\r\nHost: 127.0.0.1\r\n", 400),
    ):
        with socket.create_connection(("127.0.0.1", httpd.server_port), timeout=10) as connection:
            connection.sendall(f"{request}{cookie}\r\n".encode())
            assert connection.recv(100).split()[1] == str(status).encode()
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, leaves)
    has_left, is_handled, handle_error, answering = threading.Event(), threading.Event(), httpd.handle_error, []

    def slow_picture():
        answering.append(threading.current_thread())
        assert has_left.wait(10)
        return bytes(2**24)

    def handle_and_tell(*request):
        handle_error(*request)
        if threading.current_thread() in answering:
            is_handled.set()

    httpd.files["slow.png"] = slow_picture
    monkeypatch.setattr(httpd, "handle_error", handle_and_tell)
    with socket.create_connection(("127.0.0.1", httpd.server_port), timeout=10) as connection:
        connection.sendall(f"GET /slow.png HTTP/1.1\r\n{own}{cookie}\r\n".encode())
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, leaves)
    has_left.set()
    assert is_handled.wait(10)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:9000", "LOCALHOST", "[::1]:8008"])
def test_this_machine_is_served_by_each_of_its_names(httpd, host):
    assert ask(httpd, "/", Host=host, Cookie=f"{httpd.cookie}={httpd.token}")[0] == 200


def test_what_is_served_is_what_a_bundle_holds(original):
    served, bundle = site([run_in(original, "one")], served=True), site([run_in(original, "one")])
    for name in ("core", "column-0", "column-1", "column-2"):
        method, *values = json.loads(served[f"{name}.json"]())
        assert said(bundle[f"{name}.js"]()) == (method, values)
    assert b'src="core.js"' not in served["index.html"]()
    assert b'src="core.js"' in bundle["index.html"]()
    assert not [name for name in served if name.endswith(".js") and name != "view.js"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_way_to_end_the_server_is_told_in_one_line(original, monkeypatch, number):
    monkeypatch.setattr(ViewServer, "serve_forever", lambda server: signal.raise_signal(number))
    handlers = {s: signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)}
    try:
        done = CliRunner().invoke(view, [str(original), "--no-open", "--port", "0"])
    finally:
        for of, handler in handlers.items():
            signal.signal(of, handler)
    assert done.exit_code == 0, done.output
    address, *rest = done.output.split()
    assert address.startswith("http://127.0.0.1:")
    assert " ".join(rest) == "(Ctrl-C ends it) view: ended"


def test_the_bundle_is_static_and_asks_for_nothing(original, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(view, [str(original), "--bundle", "samples"])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "samples" / "index.html").read_text()
    assert "http:" not in page
    assert "https:" not in page
    assert (tmp_path / "samples" / "core.js").is_file()
    assert (tmp_path / "samples" / "sheets" / "1-0-change.png").is_file()
