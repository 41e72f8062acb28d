"""`lxsr serve`: serve search, and embeddings compatible with OpenAI's API, over HTTP."""

import argparse
import os
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from fairseq_lxsr.cli.options import OUR_MODEL, add_options, filled
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.machine import require
from fairseq_lxsr.options import FILE_NAME, file_path
from fairseq_lxsr.serve import API_KEY, ServeOptions, check_key

if TYPE_CHECKING:
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.search import CorpusIndex


def add_parser(verbs) -> None:
    parser = verbs.add_parser("serve", description=__doc__)
    parser.add_argument(
        "--model",
        type=FILE_NAME,
        metavar="FOLDER",
        help=f"{OUR_MODEL} (default: the model that --index was built with)",
    )
    parser.add_argument(
        "--index",
        type=file_path,
        metavar="FOLDER",
        help="index folder written by `lxsr index`, for /search",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="cpu or cuda (default: as for `lxsr embed`)"
    )
    add_options(parser, ServeOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    for module in ("starlette", "uvicorn", "orjson", "prometheus_client"):
        require(module, "serve", "lxsr serve")
    options = filled(ServeOptions, args, api_key=api_key(args))
    if options.allow_edits and not (options.api_key and args.index):
        raise InputError(
            f"--allow-edits requires an index and a key; specify --index FOLDER and {API_KEY}"
        )
    # Loading the model takes seconds, so an unusable address is rejected first.
    with listen(options.host, options.port) as listener:
        check_access(options, listener)
        serve(args, options, listener)
    say("lxsr serve: stopped")


def api_key(args: argparse.Namespace) -> str | None:
    """Return the API key from the command line or the environment.

    An empty environment variable is ignored. An empty option is an error, because its value may
    come from a shell variable that is not set.
    """
    if args.api_key is not None:
        check_key("--api-key", args.api_key)
        return args.api_key
    key = os.environ.get(API_KEY)
    if not key:
        return None
    check_key(API_KEY, key)
    return key


def serve(args: argparse.Namespace, options: ServeOptions, listener: socket.socket) -> None:
    """Load the model and the index, and serve requests until a signal stops the server."""
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.search import CorpusIndex
    from fairseq_lxsr.serve.app import make_app
    from fairseq_lxsr.serve.connections import make_server

    index = None
    if args.index:
        index = CorpusIndex.load(args.index)
    model = args.model or default_model(index, args)
    encoder = SentenceEncoder.from_pretrained(model, args.device)
    name = options.name or default_name(encoder, model)
    app = make_app(encoder, name, options, index)
    print_address(name, options.truncate_dim or encoder.output_dim, listener)
    server = make_server(app, options.timeout, options.max_connections)
    # After Ctrl-C, uvicorn finishes the running requests and then raises the signal again.
    with suppress(KeyboardInterrupt):
        server.run(sockets=[listener])


def default_model(index: "CorpusIndex | None", args: argparse.Namespace) -> str:
    """Return the model that the index was built with; raise an error if there is no index."""
    from fairseq_lxsr.cli.search import index_model

    if index is None:
        raise InputError("--model or --index is required; an index specifies its own model")
    return index_model(index, args.index)


def default_name(encoder: "SentenceEncoder", model: str) -> str:
    """Return the name of the model, from its folder, or `model` if the encoder has no folder."""
    from fairseq_lxsr.encoder.locate import name_of

    if encoder.folder is None:
        return str(model)
    return name_of(encoder.folder)


def check_access(options: ServeOptions, listener: socket.socket) -> None:
    """Raise an error if other machines could use the server without a key."""
    from fairseq_lxsr.serve.app import is_local

    host = listener.getsockname()[0]
    if not is_local(host) and not options.api_key:
        raise InputError(
            f"--host {options.host}: every machine that can connect could use this server; set "
            f"{API_KEY} to a key that clients must send, or use --host 127.0.0.1"
        )


def print_address(name: str, dimension: int, listener: socket.socket) -> None:
    """Print the base URL of the API."""
    host, port = listener.getsockname()[:2]
    # In a URL, brackets separate an IPv6 address from the port.
    url_host = host
    if ":" in host:
        url_host = f"[{host}]"
    print(f"{name}, {dimension} dimensions: http://{url_host}:{port}/v1", flush=True)


def listen(host: str, port: int) -> socket.socket:
    """Open the socket that the server listens on.

    Raises:
        InputError: if the host is unknown, or the port is in use or not permitted.
    """
    family = socket.AF_INET
    if ":" in host:
        family = socket.AF_INET6
    try:
        listener = socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        problem = getattr(error, "strerror", None) or error
        raise InputError(
            f"--host {host} --port {port}: {problem}; choose another host or port (--port 0 for "
            "any free port)"
        ) from None
    # Connections inherit the option. Without it, the second packet of a response waits for the
    # delayed acknowledgement of the first, 40 ms later. asyncio sets it only for sockets that were
    # created with IPPROTO_TCP, and `create_server` leaves the protocol open.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listener
