"""deploy local, init, pin, check, renew, add and revoke."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from fedveca.cli.arguments import (
    Command,
    add_experiment,
    add_output,
    add_quiet,
    choose_folder,
    parse_experiment,
    parse_folder,
    print_result,
)
from fedveca.cli.monitor import add_monitor, parse_monitor
from fedveca.cli.parser import CommandFunction
from fedveca.errors import UserError

if TYPE_CHECKING:
    from fedveca.runs.experiment import Experiment

LONGEST_WAIT = 86400.0  # seconds


def add(command: Command) -> None:
    examples = (
        ("fedveca deploy local rounds=10 --nodes 3", "a server and three nodes on this machine"),
        ("fedveca deploy init fleet --nodes 5 --host learn.example", "what a server and five devices need"),
        ("fedveca deploy check fleet", "whether its nodes are ready"),
    )
    deploy = command("deploy", _local, "Run an experiment on real Flower nodes.", examples)
    ways = deploy.add_subparsers(required=True, metavar="local | init | pin | check | renew | add | revoke")
    text = "Start a SuperLink and SuperNodes on this machine, run the experiment, then shut everything down."
    local = ways.add_parser("local", help=text, description=text)
    local.set_defaults(command=_local, parser=local)
    add_experiment(local)
    local.add_argument("--nodes", type=int, metavar="N", help="number of nodes (default: the experiment's clients)")
    local.add_argument(
        "--out", type=parse_folder, metavar="DIR", help="folder to write (default: a new one under runs/)"
    )
    local.add_argument("--resume", type=parse_folder, metavar="DIR", help="resume the run in DIR; rounds=N adds rounds")
    _add_poll(local)
    add_monitor(local)
    add_quiet(local)
    text = "Write a Flower app, certificates, node keys and start scripts for a server and its devices."
    init = ways.add_parser("init", help=text, description=text)
    init.set_defaults(command=_init, parser=init)
    init.add_argument("folder", type=parse_folder, metavar="DIR", help="folder to write")
    add_experiment(init, "DIR ")
    init.add_argument("--nodes", type=int, metavar="N", help="number of devices (default: the experiment's clients)")
    init.add_argument("--host", default="127.0.0.1", help="name or address of the server (default 127.0.0.1)")
    init.add_argument("--port", type=int, default=8000, help="the server's port (default 8000)")
    _add_poll(init)
    init.add_argument(
        "--log-mb", type=float, default=16.0, metavar="MB", help="megabytes of a log until it is rotated (default 16)"
    )
    init.add_argument(
        "--log-files", type=int, default=5, metavar="N", help="rotated files to keep of each log (default 5)"
    )
    add_monitor(init)
    text = "Let nodes accept one app and reject every other app that a server may send."
    pinned = ways.add_parser("pin", help=text, description=text)
    pinned.set_defaults(command=_pin, parser=pinned)
    pinned.add_argument("app", type=parse_folder, metavar="APP", help="folder of the app that `deploy init` wrote")
    pinned.add_argument(
        "nodes", type=parse_folder, nargs="+", metavar="NODE", help="folder of a node, for example node-0"
    )
    _add_operations(ways)


def _add_operations(ways: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """What an operator of a deployment needs over time."""

    def add_way(name: str, function: CommandFunction, text: str) -> argparse.ArgumentParser:
        way = ways.add_parser(name, help=text, description=text)
        way.set_defaults(command=function, parser=way)
        way.add_argument("folder", type=parse_folder, metavar="DIR", help="folder that `deploy init` wrote")
        return way

    text = "Ask the nodes of a running server for versions, clock, data, disk, memory, speed and certificates."
    check = add_way("check", _check, text)
    check.add_argument(
        "--wait", type=float, default=30.0, metavar="S", help="seconds to wait for nodes to connect (default 30)"
    )
    check.add_argument(
        "--timeout", type=float, default=120.0, metavar="S", help="seconds to wait for their answers (default 120)"
    )
    add_output(check)
    renew = add_way("renew", _renew, "Give the server a new certificate; keys stay the same.")
    renew.add_argument(
        "--new-ca", action="store_true", help="replace the authority as well: every node then needs the new ca.pem"
    )
    add = add_way("add", _add, "Make a node with a key of its own, also while the server runs.")
    add.add_argument("node", metavar="NODE", help="node-I: the next number, or one whose key was revoked")
    revoke = add_way("revoke", _revoke, "Lock a node out by removing its key, also while the server runs.")
    revoke.add_argument("node", metavar="NODE", help="the node's name, for example node-2")


def _add_poll(parser: argparse.ArgumentParser) -> None:
    text = "shortest time between two looks for something new: 0.01 to 0.5, or 0 for Flower's intervals (default 0.05)"
    parser.add_argument("--poll", type=float, default=0.05, metavar="SECONDS", help=text)


def _local(args: argparse.Namespace) -> int:
    from fedveca.deploy.provision import require_flower

    require_flower()
    from fedveca.deploy.local import run_locally
    from fedveca.deploy.superlink import FederationFailed
    from fedveca.runs.experiment import name_folder, parse_settings
    from fedveca.runs.folder import Run
    from fedveca.views.terminal.screen import Screen

    if args.resume:
        settings = parse_settings(args.words)
        if args.out or args.nodes or set(settings) - {"rounds"}:
            raise UserError("--resume takes the run as it is; only rounds=N may be given with it")
        former, out = Run.open(args.resume), args.resume
        experiment = replace(former.experiment, rounds=settings.get("rounds", former.experiment.rounds))
        if former.summary and len(former.rounds) >= experiment.rounds:
            raise UserError(f"{out} is finished: {len(former.rounds)} rounds are done; ask for more with rounds=N")
    else:
        name, experiment = parse_experiment(args.words)
        experiment = _with_nodes(experiment, args.nodes)
        out = choose_folder(args.out, f"{name}-{name_folder(experiment.method)}-flower")
    monitor = parse_monitor(args)
    with Screen(args.quiet) as screen:
        try:
            done = run_locally(
                experiment, out, observers=(screen,), resume=bool(args.resume), poll=args.poll, monitor=monitor
            )
        except FederationFailed as error:
            screen.warn(f"fedveca: {error}")
            return 1
        screen.summarize(done)
    return 1 if "stopped" in done.summary else 0


def _init(args: argparse.Namespace) -> int:
    from fedveca.deploy.logs import LogLimit
    from fedveca.deploy.provision import require_flower

    require_flower()
    from fedveca.deploy.templates import write_deployment

    _, experiment = parse_experiment(args.words)
    experiment = _with_nodes(experiment, args.nodes)
    logs = LogLimit(args.log_mb, args.log_files)
    write_deployment(args.folder, experiment, args.host, args.port, args.poll, logs, parse_monitor(args))
    print(f"wrote an app, a server and {experiment.clients} devices; see {args.folder / 'README.md'}")
    return 0


def _pin(args: argparse.Namespace) -> int:
    from fedveca.deploy.pin import pin

    pin(args.app, args.nodes)
    print(f"these nodes now accept only {args.app}: {', '.join(map(str, args.nodes))}")
    return 0


def _check(args: argparse.Namespace) -> int:
    from fedveca.deploy.provision import require_flower

    require_flower()
    for name in ("wait", "timeout"):
        if not 0 <= (value := getattr(args, name)) <= LONGEST_WAIT:
            raise UserError(f"--{name} {value:g} is out of range; allowed: 0 to {LONGEST_WAIT:g}")
    from fedveca.deploy.ready import check_deployment, describe_expiry, tabulate_check
    from fedveca.deploy.superlink import FederationFailed
    from fedveca.views.terminal.checks import show_checks
    from fedveca.views.terminal.console import make_console

    try:
        found, problems, warnings = check_deployment(args.folder, args.wait, args.timeout)
    except FederationFailed as error:
        raise UserError(str(error)) from error
    days, nodes = describe_expiry(args.folder / "server"), found["nodes"]
    problems += [f"client {node['client']} {said}" for node in nodes for said in node["problems"]]
    warnings += [f"client {node['client']} {said}" for node in nodes for said in node["warnings"]]
    if not args.quiet and not args.json:
        show_checks(make_console(), tabulate_check(found), problems, warnings)
    result = {"ready": not problems, "certificates": days, "server": found["server"], "nodes": nodes}
    here = found["server"]
    versions = ", ".join(f"{'fedveca' if name == 'version' else name} {here[name]}" for name in here)
    text = f"The server has {versions}; its certificate is valid for {days['server.pem']} days, its authority's for "
    text += f"{days['ca.pem']:,}. A node with another version is named above." if nodes else f"{days['ca.pem']:,}."
    print_result(args, result | {"problems": problems, "warnings": warnings}, text)
    return int(bool(problems))


def _renew(args: argparse.Namespace) -> int:
    from fedveca.deploy.provision import require_flower

    require_flower()
    from fedveca.deploy.members import renew_deployment

    replaced = renew_deployment(args.folder, args.new_ca)
    print(f"wrote a new certificate to {args.folder / 'server' / 'tls' / 'server.pem'}")
    if replaced:
        print("copy each node-I/ca.pem to its device and restart the node, before you restart the server:")
        for node in replaced:
            print(f"  {node}")
    print("then restart the server (server/start.sh, or systemctl restart fedveca-server); a run resumes by itself")
    return 0


def _add(args: argparse.Namespace) -> int:
    from fedveca.deploy.provision import require_flower

    require_flower()
    from fedveca.deploy.members import add_node, parse_node
    from fedveca.deploy.peers import PEERS_FILE

    home = add_node(args.folder, parse_node(args.node))
    print(f"wrote {home}; copy it to its device and start it there with start.sh")
    if (home / PEERS_FILE).exists():
        print(f"copy each node's {PEERS_FILE} to its device too: nodes that mask their vectors must know the new key")
    return 0


def _revoke(args: argparse.Namespace) -> int:
    from fedveca.deploy.provision import require_flower

    require_flower()
    from fedveca.deploy.members import parse_node, revoke_node

    client = parse_node(args.node)
    revoke_node(args.folder, client)
    print(f"node-{client} is locked out; `fedveca deploy add {args.folder} node-{client}` makes another node for it")
    return 0


def _with_nodes(experiment: Experiment, nodes: int | None) -> Experiment:
    """The experiment with one client per node; UserError where there are too many."""
    from fedveca.deploy.packages import MOST_NODES

    experiment = experiment if nodes is None else replace(experiment, clients=nodes)
    if experiment.clients > MOST_NODES:
        named = f"clients={experiment.clients}" if nodes is None else f"--nodes {nodes}"
        raise UserError(f"{named} is out of range; at most {MOST_NODES} nodes")
    return experiment
