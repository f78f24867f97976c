"""`fedveca deploy check`: starts the check at the server, and says whether the federation can start."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

from fedveca.deploy import private_api
from fedveca.deploy.certificates import count_days, list_expiry_warnings, read_expiry
from fedveca.deploy.check import FederationCheck, NodeCheck, read_check
from fedveca.deploy.members import read_deployment
from fedveca.deploy.superlink import SuperLink
from fedveca.errors import UserError

_START_SECONDS = 120.0  # for Flower to start the check, and to load what it needs
_SECRETS = ("tls/server.key",)


def check_deployment(folder: Path, wait: float, timeout: float) -> tuple[FederationCheck, list[str], list[str]]:
    """Asks the nodes of a running server.

    Args:
        folder: the folder that `deploy init` wrote.
        wait: seconds to wait for nodes that are not connected.
        timeout: seconds to wait for their answers.

    Returns:
        What was found of the nodes, then problems and warnings of the server itself.

    Raises:
        UserError: if the folder is not a deployment's, if its server does not run, or if there was no check.
    """
    deployment, server = read_deployment(folder), (folder / "server").absolute()
    if not (server / "api.sock").exists() or not private_api.is_listening(server):
        raise UserError(f"the server is not running; start it with {folder / 'server' / 'start.sh'}")
    problems, warnings = _check_files(server)
    with tempfile.TemporaryDirectory(prefix=".check-", dir=server) as place:
        path = Path(place) / "check.json"
        link = SuperLink(server, deployment.bind, deployment.port)
        link.submit([f'check="{wait:g} {timeout:g} {path}"'], folder.absolute() / "app")
        until = time.monotonic() + _START_SECONDS + wait + timeout
        while (found := read_check(path)) is None:
            if time.monotonic() > until:
                raise UserError(f"the check did not end in time; see {server / 'superlink.log'}")
            time.sleep(0.25)
    return found, problems, warnings


def _check_files(server: Path) -> tuple[list[str], list[str]]:
    """What is wrong with the server's own certificates and keys."""
    problems, warnings, now = list[str](), list[str](), time.time()
    for sentence in list_expiry_warnings(server / "tls", now):
        (problems if "expired" in sentence else warnings).append(sentence)
    for name in _SECRETS:
        path = server / name
        if not path.exists():
            problems.append(f"{path} is missing")
        elif path.stat().st_mode & 0o077:
            problems.append(f"{path} can be read by others: its mode is {path.stat().st_mode & 0o777:o}, not 600")
    if os.stat(server).st_mode & 0o077:
        problems.append(f"{server} can be entered by others")
    return problems, warnings


def describe_expiry(server: Path) -> dict[str, int]:
    """Days that the server's certificates are still valid, by file."""
    return {name: count_days(read_expiry(server / "tls" / name), time.time()) for name in ("server.pem", "ca.pem")}


def tabulate_check(found: FederationCheck) -> list[dict[str, str]]:
    """One row per node: what a person wants to see of it, by heading; `-` where it did not report it."""
    return [_tabulate_node(node) for node in found["nodes"]]


def _tabulate_node(node: NodeCheck) -> dict[str, str]:
    def show(value: object, text: str) -> str:
        return "-" if value is None else text

    disk, memory, seconds = node.get("disk"), node.get("memory"), node.get("row_seconds")
    skew, expiry, rows = node.get("skew"), node.get("expiry"), node.get("rows")
    return {
        "node": f"node-{node['client']}",
        "state": "problem" if node["problems"] else "warning" if node["warnings"] else "ready",
        "fedveca": node.get("version", "-"),
        "rows": show(rows, f"{rows or 0:,}"),
        "clock": show(skew, f"{skew or 0:+.1f}±{node.get('skew_error', 0):.1f} s"),
        "disk": show(disk, f"{(disk or 0) / 2**30:.1f} GB"),
        "memory": show(memory, f"{(memory or 0) / 2**30:.1f} GB"),
        "per row": show(seconds, f"{(seconds or 0) * 1e6:,.1f} µs"),
        "ca.pem": show(expiry, f"{count_days(expiry or 0, time.time()):,} d"),
    }
