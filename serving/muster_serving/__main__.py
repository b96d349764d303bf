"""The command of the images ``serve``, ``kserve`` and ``seldon``: ``python -m muster_serving NAME …``."""

from __future__ import annotations

import argparse
import json
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from pathlib import Path


def parsed(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the command's arguments. :param words: in place of those that this process was started with."""
    parser = argparse.ArgumentParser(prog="muster_serving", description="Serve one deployment.")
    parser.add_argument("name", help="the deployment's name, which is also the model's name in every path")
    parser.add_argument(
        "--server",
        choices=list(_SERVERS),
        default="serve",
        help="serve is muster's own (the default), kserve has KServe's SDK around it, seldon is Seldon Core's wrapper; "
        "workers are those of another container's server",
    )
    parser.add_argument("--model", type=Path, help="folder of the version to serve from the start")
    parser.add_argument("--revision", default="1", help="that version's revision name (default: 1)")
    parser.add_argument(
        "--version", default="", help="its address, such as volume://flights/model@8: a header of each answer"
    )
    parser.add_argument(
        "--setup",
        type=json.loads,
        help="how the workers of that version run, as JSON; not given, it is an ONNX model",
    )
    parser.add_argument(
        "--counts-inputs",
        action="store_true",
        help="count requests by the bins of that version's training rows",
    )
    parser.add_argument(
        "--log",
        type=json.loads,
        help="what is kept of the requests to that version, and where, as JSON; not given: nothing",
    )
    parser.add_argument(
        "--limits", type=json.loads, help="how much a client may ask, as JSON; not given: any number"
    )
    parser.add_argument(
        "--tokens", type=Path, help="folder of the clients' tokens, each needs one; not given: anyone may ask"
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument(
        "--grpc-port", type=int, help="of the same host, where gRPC is answered; not given: it is not"
    )
    parser.add_argument(
        "--grpc-fd", type=_socket, help="an inherited listening socket, instead of host and that port"
    )
    parser.add_argument(
        "--public-fd", type=_socket, help="an inherited listening socket, instead of host and port"
    )
    parser.add_argument(
        "--private-fd",
        type=_socket,
        help="an inherited socket, on which revisions without a share answer, too",
    )
    parser.add_argument("--control-fd", type=_socket, help="an inherited socket for the keeper's commands")
    parser.add_argument(
        "--post-fd", type=_socket, help="an inherited socket that takes a line for the next keeper"
    )
    parser.add_argument("--label", type=json.loads, default={}, help="what the next keeper is told with it")
    return parser.parse_args(words)


def main() -> None:
    """Serve until SIGTERM, then finish the requests under way."""
    if os.getpid() == 1:  # in a container: Linux drops a signal that process 1 does not handle
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # no request is under way yet
    arguments = parsed()
    from muster_serving.errors import ModelError

    try:
        _SERVERS[arguments.server](arguments)
    except ModelError as error:
        sys.exit(f"{arguments.name}: {error}")


def _serve(arguments: argparse.Namespace) -> None:
    """Serve by muster's own server, which has KServe's SDK around it where that is asked for."""
    framework = None
    if arguments.server == "kserve":
        sys.argv = sys.argv[:1]  # kserve also reads sys.argv, at its import
        from muster_serving.kserve_server import framework
    from muster_serving.server import serve

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    serve(arguments, framework)


def _serve_seldon(arguments: argparse.Namespace) -> None:
    """Serve one version, on all addresses: Seldon Core's wrapper has no other mode."""
    from muster_serving.seldon_model import serve

    if arguments.model is None:
        sys.exit("--model is missing: Seldon Core's wrapper serves one version from the start")
    serve(
        arguments.name,
        model=arguments.model,
        revision=arguments.revision,
        version=arguments.version,
        port=arguments.port,
        counts_inputs=arguments.counts_inputs,
    )


def _host_workers(arguments: argparse.Namespace) -> None:
    """Start workers in the author's image, which holds nothing of a server's."""
    from muster_serving.process import host
    from muster_serving.process.start import Setup

    if arguments.model is None or not arguments.setup:
        sys.exit("--model or --setup is missing: workers load one version")
    setup = Setup.parse(arguments.setup)
    host.main(Path(setup.socket), arguments.model, setup)


_SERVERS = {"serve": _serve, "kserve": _serve, "seldon": _serve_seldon, "workers": _host_workers}


def _socket(number: str) -> socket.socket:
    return socket.socket(fileno=int(number))


if __name__ == "__main__":
    main()
