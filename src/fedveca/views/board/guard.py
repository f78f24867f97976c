"""Who may ask: browsers that call the board by a name it accepts, with the token where one is needed."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Iterable
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
_FOREIGN = ("cross-site", "same-site")  # what browsers say of requests that another page makes


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def make_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(24)


class Guard:
    """An ASGI layer around the whole board.

    A page of another site whose name is made to point here (DNS rebinding) is known by the Host header: an
    address cannot be re-pointed, so addresses pass where the board listens beyond this machine.
    """

    def __init__(self, app: ASGIApp, host: str, token: str, names: Iterable[str] = ()) -> None:
        self.app, self.token, self.open = app, token, not is_loopback(host)
        own = (host, socket.gethostname(), socket.getfqdn()) if self.open else ()
        self.names = {name.lower() for name in ("localhost", *own, *names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = {name for name, _ in message["headers"]}
                usual = ((k.encode(), v.encode()) for k, v in _HEADERS.items() if k.encode() not in own)
                message["headers"] = [*message["headers"], *usual]
            await send(message)

        if scope["type"] == "http":
            await (self._answer(Request(scope)) or self.app)(scope, receive, send_with_headers)

    def _answer(self, request: Request) -> Response | None:
        """A rejection, or the cookie for a token in the address; None where the board itself answers."""
        cookie = f"fedveca_board_{request.scope['server'][1]}"  # browsers keep cookies by host alone
        if len(request.headers.getlist("host")) > 1:
            return _reply(400, "a request has one Host header")
        if request.method not in ("GET", "HEAD"):
            return _reply(405, "the board is read-only")
        if not self.accepts(request.headers.get("host", "")):
            return _reply(421, "this Host header is not accepted; start the board with --name to accept it")
        if request.url.path.startswith("/api/") and request.headers.get("sec-fetch-site", "") in _FOREIGN:
            return _reply(403, "a page of another site asks for this; only the board's own page and programs may")
        if not self.token:
            return None
        sent = request.query_params.getlist("token")
        words = [
            *sent,
            request.headers.get("authorization", "").removeprefix("Bearer "),
            request.cookies.get(cookie, ""),
        ]
        if not any(hmac.compare_digest(word.encode(), self.token.encode()) for word in words):
            return _reply(403, "the token is missing or wrong: open the address that the board printed when it started")
        if not sent:
            return None
        rest = urlencode([(k, v) for k, v in request.query_params.multi_items() if k != "token"])
        kept = f"{cookie}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        return _reply(303, "", {"location": f"/?{rest}" if rest else "/", "set-cookie": kept})

    def accepts(self, host: str) -> bool:
        """Whether a Host header names this board."""
        name = host.rsplit("]", 1)[0].lstrip("[") if host.startswith("[") else host.split(":", 1)[0]
        if name.lower().rstrip(".") in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.open or address.is_loopback


def _reply(status: int, text: str, headers: dict[str, str] | None = None) -> Response:
    return PlainTextResponse(text, status, {"cache-control": "no-store"} | (headers or {}))
