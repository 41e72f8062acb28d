"""`lxsr serve`: embeddings and searches over HTTP, with the API of OpenAI's embeddings."""

import argparse
import os
import socket
from contextlib import suppress
from dataclasses import replace
from math import ceil

from fairseq_lxsr.cli.options import OUR_MODEL, add_options, filled
from fairseq_lxsr.errors import InputError, say
from fairseq_lxsr.machine import require
from fairseq_lxsr.options import FILE_NAME, file_path
from fairseq_lxsr.serve import API_KEY, ServeOptions


def add_parser(verbs) -> None:
    parser = verbs.add_parser("serve", description=__doc__)
    parser.add_argument(
        "--model",
        type=FILE_NAME,
        metavar="FOLDER",
        help=f"{OUR_MODEL} (default: the one that --index was made with)",
    )
    parser.add_argument(
        "--index", type=file_path, metavar="FOLDER", help="folder of `lxsr index`, for /search"
    )
    parser.add_argument(
        "--device", metavar="NAME", help="cpu or cuda (default: as for `lxsr embed`)"
    )
    add_options(parser, ServeOptions)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    for module in ("starlette", "uvicorn", "orjson", "prometheus_client"):
        require(module, "serve", "lxsr serve")
    import uvicorn

    from fairseq_lxsr.cli.search import index_model
    from fairseq_lxsr.encoder import SentenceEncoder
    from fairseq_lxsr.search import open_index
    from fairseq_lxsr.serve.app import is_local, make_app

    options = filled(ServeOptions, args)
    options = replace(options, api_key=options.api_key or os.environ.get(API_KEY) or None)
    with listen(options.host, options.port) as listener:  # before what takes time is loaded
        index = open_index(args.index) if args.index else None
        model = args.model or (index_model(index, args.index) if index is not None else None)
        if model is None:
            raise InputError(
                "neither --model nor --index; expected a model, or an index, which names its model"
            )
        encoder = SentenceEncoder.from_pretrained(model, args.device)
        name = options.name or (encoder.folder.resolve().name if encoder.folder else str(model))
        app = make_app(encoder, name, options, index)
        host, port = listener.getsockname()[:2]
        if not is_local(host) and not options.api_key:
            say(
                f"every machine that reaches {host} may use this server; {API_KEY} in the environment demands a key"
            )
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=ceil(options.timeout),
        )
        print(
            f"{name}, {encoder.output_dim} wide: http://{f'[{host}]' if ':' in host else host}:{port}/v1",
            flush=True,
        )
        # uvicorn has finished what was at work, and passes the signal on
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listener])
    say("lxsr serve: stopped")


def listen(host: str, port: int) -> socket.socket:
    """Open the socket, before anything is loaded into a server that could not listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise InputError(
            f"--host {host} --port {port}: {why}; choose others, --port 0 for a free one"
        ) from None
