"""Serve the sample browser on this machine: read-only, the files of the page alone, to whoever has the token of this start."""

import ipaddress
import secrets
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from hmac import compare_digest
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import SplitResult, parse_qs, urlsplit

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "png": "image/png",
}
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",  # the address may hold the token
    "Cache-Control": "no-store",
}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class ViewServer(ThreadingHTTPServer):
    """A server of the page, not yet running. `address` is the page's, with the token that opens it."""

    daemon_threads = True

    def __init__(self, files: Mapping[str, Callable[[], bytes]], host: str, port: int) -> None:
        """Bind `host` and `port`; raises OSError where the port is taken."""
        if ":" in host:
            self.address_family = socket.AF_INET6
        super().__init__((host, port), _Handler)
        self.files, self.host, self.token = files, host, secrets.token_urlsafe(24)
        self.cookie = f"windtunnel-{self.server_port}"  # cookies of one host are shared by all of its ports
        shown = f"[{host}]" if ":" in host else host
        self.address = f"http://{shown}:{self.server_port}/?token={self.token}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing where the browser has left, as it does when a page is closed while it loads."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]  # a socket

    def is_own_host(self, headers: Sequence[str]) -> bool:
        """Return True if the one Host header names this server; a foreign name that resolves to this machine does not."""
        url = _split("//" + ",".join(headers))
        if url is None or [url.netloc] != [*headers] or "@" in url.netloc:  # a path or a user in it
            return False
        name = url.hostname or ""
        if name == self.host.lower():
            return True
        bound = self.server_address[0]
        if bound in {"0.0.0.0", "::"}:  # every address of this machine
            return name in {*_LOOPBACK, socket.gethostname().lower(), socket.getfqdn().lower()} or _is_address(name)
        return bound in _LOOPBACK and name in _LOOPBACK


class _Handler(BaseHTTPRequestHandler):
    server: ViewServer
    timeout = 60  # seconds without a byte

    def do_GET(self) -> None:
        """Answer with a file of the page: no path of the disk is ever looked at."""
        url = _split(self.path)
        hosts = [url.netloc] if url and url.netloc else self.headers.get_all("Host", [])
        if not self.server.is_own_host(hosts):
            return self._answer(421, b"windtunnel view: this host is not served\n")
        if url is None:
            return self._answer(400, b"windtunnel view: no address\n")
        name = url.path.lstrip("/") or "index.html"
        if name == "index.html" and self._is_token(*parse_qs(url.query).get("token", ())):
            cookie = f"{self.server.cookie}={self.server.token}; Path=/; HttpOnly; SameSite=Lax"
            return self._answer(303, b"", **{"Location": "/", "Set-Cookie": cookie})
        if not self._is_token(*self._cookies()):
            return self._answer(403, b"windtunnel view: open the address that the command has printed\n")
        if (make := self.server.files.get(name)) is None:
            return self._answer(404, b"no such file\n")
        return self._answer(200, make(), _TYPES[name.rsplit(".", 1)[-1]])

    def _is_token(self, *texts: str) -> bool:
        return any(compare_digest(text.encode(), self.server.token.encode()) for text in texts)

    def _cookies(self) -> list[str]:
        try:
            cookies = SimpleCookie(self.headers["Cookie"])
        except CookieError:
            return []
        return [cookies[self.server.cookie].value] if self.server.cookie in cookies else []

    def _answer(self, status: int, body: bytes, kind: str = "text/plain", **headers: str) -> None:
        self.send_response(status)
        for name, value in {**_HEADERS, "Content-Type": kind, "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the terminal is the user's."""


def _split(address: str) -> SplitResult | None:
    try:
        return urlsplit(address)
    except ValueError:  # an open bracket
        return None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
