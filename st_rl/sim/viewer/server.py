"""Opens a viser server that only its user can reach."""

from __future__ import annotations

import contextlib
import hmac
import http
import importlib
import io
import logging
import secrets
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

if TYPE_CHECKING:
    from collections.abc import Mapping

    import viser

_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")
INSTALL_COMMAND = 'pip install "st_rl[view]"'


class ViewerError(RuntimeError):
    """The viewer cannot start; the message says what to type."""


class Refusal(NamedTuple):
    """An HTTP answer that is given instead of the page."""

    status: http.HTTPStatus
    text: str
    headers: dict[str, str]


@dataclass(frozen=True)
class Access:
    """Who may open the page: any user of this machine on the loopback address, elsewhere only with the token."""

    host: str
    port: int
    token: str | None

    @property
    def address(self) -> str:
        """What the user opens in a browser."""
        host = socket.gethostname() if self.host in ("0.0.0.0", "::") else self.host
        shown = f"[{host}]" if ":" in host else host
        return f"http://{shown}:{self.port}/" + ("" if self.token is None else f"?token={self.token}")

    @property
    def _cookie(self) -> str:
        # Browsers share cookies between the ports of a host.
        return f"st_rl_view_{self.port}"

    def refuse(self, path: str, headers: Mapping[str, str]) -> Refusal | None:
        """Return the answer to a request that must not reach the page; None to let it through.

        Called for every HTTP request, that of the websocket included, before anything is sent. A request with the token
        in its address gets a cookie and is redirected, so that the token leaves the address bar.
        """
        own = headers.get("Host", "")
        if self.token is None and (urlsplit(f"//{own}").hostname or "") not in _LOOPBACK_NAMES:
            # Another site whose name points to this machine (DNS rebinding).
            return Refusal(http.HTTPStatus.FORBIDDEN, "open the address that st-rl printed\n", {})
        origin = headers.get("Origin")
        if origin is not None and urlsplit(origin).netloc != own:
            return Refusal(http.HTTPStatus.FORBIDDEN, "another site may not use this viewer\n", {})
        if self.token is None:
            return None
        given = parse_qs(urlsplit(path).query).get("token", [""])[0]
        if self._is_token(given):
            cookie = f"{self._cookie}={self.token}; HttpOnly; SameSite=Lax; Path=/"
            return Refusal(http.HTTPStatus.FOUND, "", {"Location": "/", "Set-Cookie": cookie})
        cookies = SimpleCookie(headers.get("Cookie", ""))
        if self._cookie in cookies and self._is_token(cookies[self._cookie].value):
            return None
        return Refusal(
            http.HTTPStatus.UNAUTHORIZED,
            "open the whole address that st-rl printed, with ?token=...\n",
            {},
        )

    def _is_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())


def require_viser() -> Any:
    """Import viser and mjviser; ViewerError names the extra."""
    try:
        importlib.import_module("mjviser")
        return importlib.import_module("viser")
    except ImportError as error:
        raise ViewerError(
            f"the viewer in the browser needs viser and mjviser ({error.name or error} is missing): {INSTALL_COMMAND}"
        ) from error


def open_server(host: str, port: int) -> tuple[viser.ViserServer, Access]:
    """Start a server on an address; on any but a loopback address with a new token.

    ViewerError if the port is in use, or if the packages are not installed. `port` 0 takes a free one.
    """
    module = require_viser()
    port = claim_port(host, port)
    token = None if host in _LOOPBACK_NAMES else secrets.token_urlsafe(16)
    access = Access(host, port, token)
    # A closed browser is not an error.
    logging.getLogger("websockets").setLevel(logging.CRITICAL)
    # viser prints a banner; the caller prints the address, with the token.
    with _guarded(access) as is_guarded, contextlib.redirect_stdout(io.StringIO()):
        server = module.ViserServer(host=host, port=port, verbose=False)
    if not is_guarded() or server.get_port() != port:
        server.stop()
        raise ViewerError(
            f"viser {module.__version__} does not open its port as this version of st_rl expects: {INSTALL_COMMAND}"
        )
    return server, access


def claim_port(host: str, port: int) -> int:
    """Return the port, or a free one for 0; ViewerError if it cannot be opened. viser alone would take the next one."""
    if not 0 <= port < 65536:
        raise ViewerError(f"--port {port} is no port: give a number from 1 to 65535, or 0 for any that is free")
    try:
        kind = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        with socket.socket(kind, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
            return int(probe.getsockname()[1])
    except socket.gaierror as error:
        raise ViewerError(f"--host {host} is no address of this machine ({error.strerror})") from error
    except OSError as error:
        reason = error.strerror or error
        raise ViewerError(
            f"cannot open port {port} on {host} ({reason}): choose another with --port, or --port 0 for any free one"
        ) from error


@contextlib.contextmanager
def _guarded(access: Access) -> Iterator[Callable[[], bool]]:
    """Put `access` in front of the HTTP server that viser opens in this block; yields whether it did.

    viser has no hook before the websocket is accepted and its scene sent.
    """
    import websockets.asyncio.server as servers
    from websockets.datastructures import Headers
    from websockets.http11 import Response

    opened = servers.serve
    guarded = False

    def serve(*args: Any, process_request: Callable[[Any, Any], Any], **options: Any) -> Any:
        nonlocal guarded
        guarded = True

        def check(connection: Any, request: Any) -> Any:
            refusal = access.refuse(request.path, request.headers)
            if refusal is None:
                return process_request(connection, request)
            body = refusal.text.encode()
            headers = {"Content-Type": "text/plain", "Content-Length": str(len(body)), **refusal.headers}
            return Response(refusal.status.value, refusal.status.phrase, Headers(**headers), body)

        return opened(*args, process_request=check, **options)

    servers.serve = serve
    try:
        yield lambda: guarded
    finally:
        servers.serve = opened
