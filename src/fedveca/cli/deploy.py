"""deploy local, deploy init, deploy pin."""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import TYPE_CHECKING

from fedveca.cli.arguments import Command, add_experiment, add_quiet, choose_folder, parse_experiment, parse_folder
from fedveca.cli.monitor import add_monitor, parse_monitor
from fedveca.errors import UserError

if TYPE_CHECKING:
    from fedveca.runs.experiment import Experiment

MOST_NODES = 10_000  # each has a folder, a key and a process


def add(command: Command) -> None:
    examples = (
        ("fedveca deploy local rounds=10 --nodes 3", "a server and three nodes on this machine"),
        ("fedveca deploy init fleet --nodes 5 --host learn.example", "what a server and five devices need"),
    )
    deploy = command("deploy", _local, "Run an experiment on real Flower nodes.", examples)
    ways = deploy.add_subparsers(required=True, metavar="local | init | pin")
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
    add_monitor(init)
    text = "Let nodes accept one app and reject every other app that a server may send."
    pinned = ways.add_parser("pin", help=text, description=text)
    pinned.set_defaults(command=_pin, parser=pinned)
    pinned.add_argument("app", type=parse_folder, metavar="APP", help="folder of the app that `deploy init` wrote")
    pinned.add_argument(
        "nodes", type=parse_folder, nargs="+", metavar="NODE", help="folder of a node, for example node-0"
    )


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
    from fedveca.deploy.provision import require_flower
    from fedveca.deploy.templates import write_deployment

    require_flower()
    _, experiment = parse_experiment(args.words)
    experiment = _with_nodes(experiment, args.nodes)
    write_deployment(args.folder, experiment, args.host, args.port, args.poll, parse_monitor(args))
    print(f"wrote an app, a server and {experiment.clients} devices; see {args.folder / 'README.md'}")
    return 0


def _pin(args: argparse.Namespace) -> int:
    from fedveca.deploy.pin import pin

    pin(args.app, args.nodes)
    print(f"these nodes now accept only {args.app}: {', '.join(map(str, args.nodes))}")
    return 0


def _with_nodes(experiment: Experiment, nodes: int | None) -> Experiment:
    """The experiment with one client per node; UserError where there are too many."""
    experiment = experiment if nodes is None else replace(experiment, clients=nodes)
    if experiment.clients > MOST_NODES:
        named = f"clients={experiment.clients}" if nodes is None else f"--nodes {nodes}"
        raise UserError(f"{named} is out of range; at most {MOST_NODES} nodes")
    return experiment
