"""HTTP server for embeddings and search (`lxsr serve`), compatible with OpenAI clients."""

from dataclasses import dataclass

from fairseq_lxsr.options import ON_LONG, FileName, at_least, check_fields, option, positive

# Name of the environment variable that contains the API key.
API_KEY = "LXSR_API_KEY"
MODEL_TOKENS = "model"
# Supported token vocabularies: tiktoken's encodings and the model's own subwords.
TOKENS = ("cl100k_base", "o200k_base", MODEL_TOKENS)
MEBIBYTE = 2**20
HOST_NAME = FileName(description="an address")


@dataclass(frozen=True)
class ServeOptions:
    """Address, API key and request limits of a server."""

    host: str = option(
        "address to listen on; 0.0.0.0 for all addresses of this machine",
        "127.0.0.1",
        HOST_NAME,
        metavar="HOST",
    )
    port: int = option("port to listen on; 0 for a free one", 8000, at_least(0, 65535))
    name: str | None = option(
        "model name for clients (default: name of the model folder)", None, metavar="NAME"
    )
    api_key: str | None = option(
        f"key that clients must send; prefer {API_KEY}, because command lines are visible to other "
        "users (default: none)",
        None,
        metavar="KEY",
    )
    truncate_dim: int | None = option(
        "answer with the first N dimensions of each embedding (default: all)", None, at_least(1)
    )
    on_long: str = option(
        "how to handle texts that are too long for the model, as in `lxsr embed`",
        "split-mean",
        ON_LONG,
    )
    tokens: str = option(
        "vocabulary of inputs sent as token ids: an OpenAI encoding, or model for the subwords of "
        "the model",
        TOKENS[0],
        TOKENS,
    )
    max_body: int = option("maximum request size in MiB", 8, at_least(1, 1024))
    max_inputs: int = option("maximum number of texts per request", 2048, at_least(1))
    max_requests: int = option(
        "maximum number of concurrent requests; others receive status 503", 256, at_least(1)
    )
    timeout: float = option(
        "seconds until a request fails, and that a stopping server waits for running requests",
        30.0,
        positive(),
    )

    def __post_init__(self):
        check_fields(self)
