"""`fedveca board`."""

from __future__ import annotations

import argparse
import contextlib
import socket
import webbrowser
from pathlib import Path

from fedveca.cli.arguments import Command, parse_folder
from fedveca.errors import UserError


def add(command: Command) -> None:
    examples = (
        ("fedveca board --open", "the runs in runs/, in the browser"),
        ("fedveca board results --port 0", "another folder, on a free port"),
    )
    text = "Show runs on a local web page, and follow those that are running."
    board = command("board", _board, text, examples)
    board.add_argument(
        "runs",
        nargs="?",
        type=parse_folder,
        default=Path("runs"),
        metavar="RUNS_DIR",
        help="folder that holds runs, down to 12 levels (default runs); where it is missing, the board waits for it",
    )
    board.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; a token is required unless it is this machine's own (default 127.0.0.1)",
    )
    board.add_argument("--port", type=int, default=8765, help="port to listen on, 0 for a free one (default 8765)")
    board.add_argument("--token", action="store_true", help="require a token on this machine too")
    board.add_argument("--name", action="append", default=[], metavar="NAME", help="additional host name to accept")
    board.add_argument("--open", action="store_true", help="open the page in a browser")


def _board(args: argparse.Namespace) -> int:
    try:
        from fedveca.views.board.app import make_app
        from fedveca.views.board.connections import make_server
        from fedveca.views.board.guard import is_loopback, make_token

        waiting = not args.runs.exists()
        if not waiting and not args.runs.is_dir():
            raise UserError(f"{args.runs} is not a folder; name the one that holds runs: fedveca board RUNS_DIR")
        if not 0 <= args.port <= 65535:
            raise UserError(f"--port {args.port} is out of range; allowed: 0 to 65535")
        if not args.host.strip() or not all(name.strip() for name in args.name):
            wrong, like = ("--host", "127.0.0.1") if not args.host.strip() else ("--name", "board.example")
            raise UserError(f"{wrong} is empty; allowed: an address or a name, such as {like}")
        secret = make_token() if args.token or not is_loopback(args.host) else ""
        application = make_app(args.runs, host=args.host, token=secret, names=tuple(args.name))
    except ModuleNotFoundError as error:
        raise UserError("fedveca board needs the extra fedveca[board]: pip install 'fedveca[board]'") from error
    with _listen(args.host, args.port) as listening:
        shown = f"[{args.host}]" if ":" in args.host else args.host
        shown = socket.gethostname() if args.host in ("0.0.0.0", "::") else shown
        address = f"http://{shown}:{listening.getsockname()[1]}/{f'?token={secret}' if secret else ''}"
        print(f"board of {args.runs}: {address}   (Ctrl-C stops it)", flush=True)
        if waiting:
            print(f"{args.runs} does not exist yet; runs appear on the page as soon as there are some", flush=True)
        if args.open:
            webbrowser.open(address)
        with contextlib.suppress(KeyboardInterrupt):
            make_server(application).run(sockets=[listening])
    return 0


def _listen(host: str, port: int) -> socket.socket:
    try:
        host.encode("idna")  # as the socket will; it would leave itself open
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except (OSError, UnicodeError) as error:
        why = str(error.strerror).split(" (while")[0] if isinstance(error, OSError) else "it is not a host name"
        raise UserError(f"--host {host} --port {port} cannot be used: {why}; --port 0 chooses a free one") from error
