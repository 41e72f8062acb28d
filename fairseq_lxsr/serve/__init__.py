"""Serves embeddings and searches over HTTP, with the API that OpenAI's clients speak: `lxsr
serve`.
"""

from dataclasses import dataclass

from fairseq_lxsr.options import ON_LONG, FileName, at_least, check_fields, option, positive

API_KEY = "LXSR_API_KEY"  # environment variable
MODEL_TOKENS = "model"
TOKENS = (
    "cl100k_base",
    "o200k_base",
    MODEL_TOKENS,
)  # encodings of tiktoken, and the pieces of the model itself
MEBIBYTE = 2**20
HOST_NAME = FileName(what="an address")


@dataclass(frozen=True)
class ServeOptions:
    """Where a server listens, and what it lets a client ask for."""

    host: str = option(
        "address to listen on; 0.0.0.0 for all of this machine",
        "127.0.0.1",
        HOST_NAME,
        metavar="HOST",
    )
    port: int = option("port to listen on; 0 for a free one", 8000, at_least(0, 65535))
    name: str | None = option(
        "name of the model to clients (default: that of its folder)", None, metavar="NAME"
    )
    api_key: str | None = option(
        f"key that clients must send; rather set {API_KEY}, as others see command lines (default: none)",
        None,
        metavar="KEY",
    )
    on_long: str = option(
        "texts longer than the model reads, as for `lxsr embed`", "split-mean", ON_LONG
    )
    tokens: str = option(
        "what numbers in place of text are: tokens of OpenAI, as its clients send, or pieces of the model",
        TOKENS[0],
        TOKENS,
    )
    max_body: int = option("MiB of a request", 8, at_least(1, 1024))
    max_inputs: int = option("texts of a request", 2048, at_least(1))
    max_requests: int = option("requests at a time; more are answered with 503", 256, at_least(1))
    timeout: float = option(
        "seconds for a request, and for those that run at the end", 30.0, positive()
    )

    def __post_init__(self):
        check_fields(self)
