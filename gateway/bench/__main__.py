"""`python -m gateway.bench`: the arguments of a benchmark, nothing else."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from gateway.bench.contenders import LOG_LEVELS
from gateway.bench.options import ALL, NONE, PARTS, Options
from gateway.bench.peers import PEERS
from gateway.bench.profile import SCENARIOS as PROFILED
from gateway.bench.run import install_peers, run_bench, run_profile
from gateway.bench.scenarios import SCENARIOS
from gateway.bench.within import KINDS


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line and run; return the exit status."""
    parser = _parser()
    chosen = parser.parse_args(arguments)
    options = Options(
        full=chosen.full,
        rounds=chosen.rounds,
        seconds=chosen.seconds,
        only=tuple(chosen.only),
        peers=tuple(chosen.peer),
        peers_folder=chosen.peers,
        log_level=chosen.log_level,
        python=chosen.python,
        build=chosen.build,
        beside=tuple(chosen.beside),
        json_path=chosen.json,
    )
    if chosen.install_peers is not None:
        return install_peers(chosen.install_peers, chosen.peer)
    if chosen.profile is not None:
        return run_profile(options, name=chosen.profile, load=chosen.scenario, kind=chosen.profiler)
    return run_bench(options)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fairgate bench",
        description="measure the gateway's own overhead, beside peers, and its scheduler core",
    )
    _add_plan(parser)
    _add_peers(parser)
    _add_gateway(parser)
    _add_profile(parser)
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is measured")
    group.add_argument("--full", action="store_true", help="five rounds of longer windows")
    group.add_argument("--rounds", type=int, metavar="N", help="[3; 5 with --full]")
    group.add_argument("--seconds", type=float, metavar="S", help="length of every window")
    group.add_argument(
        "--only",
        action="append",
        default=[],
        choices=(*PARTS, *SCENARIOS),
        metavar="NAME",
        help=f"a part or a scenario; repeatable: {', '.join((*PARTS, *SCENARIOS))}",
    )
    group.add_argument(
        "--json", type=Path, metavar="FILE", help="where the results go [bench-results/]"
    )


def _add_peers(parser: argparse.ArgumentParser) -> None:
    names = (*(peer.name for peer in PEERS), ALL, NONE)
    group = parser.add_argument_group("who is measured beside the gateway, interleaved")
    group.add_argument(
        "--peer",
        action="append",
        default=[],
        choices=names,
        metavar="NAME",
        help=f"repeatable [nginx, and whatever is in --peers]: {', '.join(names)}",
    )
    group.add_argument(
        "--peers", type=Path, metavar="DIR", help="bin/ or virtual environments to find them in"
    )
    group.add_argument(
        "--install-peers",
        type=Path,
        metavar="DIR",
        help="install those that pip can, each into a virtual environment below DIR, and end",
    )


def _add_gateway(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the gateway")
    group.add_argument(
        "--log-level",
        choices=LOG_LEVELS,
        default="info",
        help="of the gateway and of every peer that has levels [info: a line a request]",
    )
    group.add_argument("--python", type=Path, metavar="FILE", help="the interpreter to run it")
    group.add_argument(
        "--build",
        type=Path,
        metavar="DIR",
        help="the folder with its package [build/compiled, unless that is out of date]",
    )
    group.add_argument(
        "--beside",
        action="append",
        default=[],
        metavar="NAME=DIR",
        help="another build of it beside this one; repeatable",
    )


def _add_profile(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where its time goes, instead of how much it is")
    group.add_argument("--profile", metavar="NAME", help="profile it; NAME is that of the file")
    group.add_argument("--scenario", choices=tuple(PROFILED), default="plain", help="[plain]")
    group.add_argument(
        "--profiler", choices=KINDS, default="samples", help="[samples]; calls: cProfile"
    )


if __name__ == "__main__":
    sys.exit(main())
