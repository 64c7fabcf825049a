"""The sample browser on this machine: read-only, files of the page alone, bound to the address that was asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css",
    "js": "text/javascript; charset=utf-8",
    "png": "image/png",
}


def server(files: Mapping[str, Callable[[], bytes]], host: str, port: int) -> ThreadingHTTPServer:
    """A server of `files`, not yet running. Raises OSError where the port is taken."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Answer with a file of the page, or 404: no path of the disk is ever looked at."""
            name = self.path.split("?")[0].lstrip("/") or "index.html"
            make = files.get(name)
            if make is None:
                self.send_error(404)
                return
            body = make()
            self.send_response(200)
            self.send_header("Content-Type", _TYPES[name.rsplit(".", 1)[-1]])
            self.send_header("Content-Length", str(len(body)))
            self.send_header("X-Content-Type-Options", "nosniff")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal is the user's."""

    return ThreadingHTTPServer((host, port), Handler)
