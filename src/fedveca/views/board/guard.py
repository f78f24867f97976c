"""Who may ask: browsers that call the board by a name of its own, with the token where one is needed."""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs, urlencode

HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
}
App = Callable[[Any, Any, Any], Awaitable[None]]


def loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def token() -> str:
    return secrets.token_urlsafe(24)


class Guard:
    """An ASGI layer around the whole board.

    A page of another site whose name is made to point here (DNS rebinding) is known by the Host header: an
    address cannot be re-pointed, so addresses pass where the board is bound to more than this machine.
    """

    def __init__(self, app: App, host: str, token: str, names: Iterable[str] = ()) -> None:
        self.app, self.token, self.open = app, token, not loopback(host)
        own = (host, socket.gethostname(), socket.getfqdn()) if self.open else ()
        self.names = {name.lower() for name in ("localhost", *own, *names)}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        query = parse_qs(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        if sum(k.lower() == b"host" for k, _ in scope["headers"]) > 1:
            await _answer(send, 400, "a request has one Host header")
        elif scope["method"] not in ("GET", "HEAD"):
            await _answer(send, 405, "the board is only looked at")
        elif not self.known(headers.get("host", "")):
            await _answer(send, 421, "the board does not go by this name; start it with --name to allow it")
        elif self.token and not self.admitted(headers, query, scope["server"][1]):
            await _answer(send, 403, "open the address that the board printed when it started: its token is needed")
        elif self.token and "token" in query:
            rest = urlencode({k: v for k, v in query.items() if k != "token"}, doseq=True)
            cookie = f"{_cookie(scope['server'][1])}={self.token}; Path=/; HttpOnly; SameSite=Strict"
            there = f"/?{rest}" if rest else "/"
            await _answer(send, 303, "", {"location": there, "set-cookie": cookie})
        else:
            await self.app(scope, receive, _with_headers(send))

    def known(self, host: str) -> bool:
        """Whether a Host header names this board."""
        name = host.rsplit("]", 1)[0].lstrip("[") if host.startswith("[") else host.split(":", 1)[0]
        if name.lower().rstrip(".") in self.names:
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return self.open or address.is_loopback

    def admitted(self, headers: dict[str, str], query: dict[str, list[str]], port: int) -> bool:
        """The token, from the address, the cookie or an Authorization header; compared in constant time."""
        given = [*query.get("token", []), headers.get("authorization", "").removeprefix("Bearer ")]
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(_cookie(port))
            given += [cookie.value] if cookie else []
        except CookieError:
            pass
        return any(hmac.compare_digest(word.encode(), self.token.encode()) for word in given)


def _cookie(port: int) -> str:
    return f"fedveca_board_{port}"  # browsers keep cookies by host alone


def _with_headers(send: Any) -> Any:
    async def wrapped(message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message["headers"], *((k.encode(), v.encode()) for k, v in HEADERS.items())]
        await send(message)

    return wrapped


async def _answer(send: Any, status: int, text: str, headers: dict[str, str] | None = None) -> None:
    fields = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store"} | HEADERS | (headers or {})
    start = {"type": "http.response.start", "status": status}
    await send(start | {"headers": [(k.encode(), v.encode("latin-1")) for k, v in fields.items()]})
    await send({"type": "http.response.body", "body": text.encode()})
