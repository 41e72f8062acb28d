"""Downloads models from a hub of models, the Hugging Face Hub or another server in $HF_ENDPOINT.

The files are stored in the cache that all libraries of the hub share. Settings of `huggingface_hub`
apply: HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN.
"""

import json
import re
from functools import cache
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from fairseq_lxsr.errors import InputError, first_line, say, shown
from fairseq_lxsr.machine import require

# Start of the name of a model on a hub. Without it, a mistyped path would be sent to the server.
HUB = "hub:"
# A name ORGANISATION/MODEL, and the revision that may follow it.
HUB_NAME = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*)(@(?P<revision>[^\s@#]+))?", re.ASCII
)
# Endings of the files that are downloaded: weights, word pieces and descriptions. Files with
# code, and pickled files, which can run code, have other endings.
DATA_ENDINGS = (".safetensors", ".json", ".txt", ".model")
DOWNLOADED = [*(f"*{ending}" for ending in DATA_ENDINGS), "README.md", "LICENSE.md"]
# Formats of other tools, which may be larger than the model itself.
NOT_DOWNLOADED = ["onnx/*", "openvino/*"]
# Seconds to wait for a server, where huggingface_hub would wait for ever.
TIMEOUT = 10
# Seconds to wait for a server if a copy of the model is cached.
CACHED_TIMEOUT = 2
# Seconds to wait for a server that receives files.
UPLOAD_TIMEOUT = 300
# Part of all addresses that describe a model and list its files.
API = "/api/models/"
COMMIT = re.compile("[0-9a-f]{40}")
DIGEST = re.compile("[0-9a-f-]{1,128}", re.IGNORECASE)
ETAG = re.compile(f'(W/)?"?{DIGEST.pattern}"?', re.IGNORECASE)
# Values that huggingface_hub uses as names of files: in the headers of a file, and in rows of JSON.
HEADERS = {"ETag": ETAG, "X-Linked-ETag": ETAG, "X-Repo-Commit": COMMIT}
FIELDS = {"sha": COMMIT, "oid": DIGEST, "xetHash": DIGEST}
# What huggingface_hub raises for malformed answers, because it trusts the types of their values.
MALFORMED_ERRORS = (
    AssertionError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
)


@cache
def download_model(name: str, revision: str | None = None) -> Path:
    """Return the folder of a model from a hub, downloading its files unless they are cached.

    If the server does not answer within `CACHED_TIMEOUT` seconds, a cached copy is used. Within a
    process, a name always refers to the same files, even if somebody uploads a new version.

    Args:
        name: name of the model, ORGANISATION/MODEL.
        revision: branch, tag or commit; None for the newest version.

    Raises:
        InputError: if huggingface_hub is missing, the model does not exist, or the download fails.
    """
    require("huggingface_hub", "hub", f"{HUB}{name}: a download from a hub")
    from huggingface_hub import constants

    guard_client()
    try:
        cached = _snapshot(name, revision, local_files_only=True)
    except InputError:
        cached = None
    # The files of a commit never change.
    if cached is not None and (cached.name == revision or constants.HF_HUB_OFFLINE):
        return cached
    if cached is not None and not _has_answer(name, revision):
        say(f"{HUB}{name}: {constants.ENDPOINT} does not answer; using cached commit {cached.name}")
        return cached
    folder = _snapshot(name, revision)
    if not any(folder.glob("*.json")):
        raise InputError(
            f"{HUB}{name}: {constants.ENDPOINT} lists no files of a model in commit {folder.name}; "
            f"use another revision, or delete {folder.parents[1]} if the model is there now"
        )
    if folder != cached:
        say(
            f"{HUB}{name}: downloaded commit {folder.name} of {constants.ENDPOINT}/{name} to "
            f"{folder}"
        )
    return folder


def _has_answer(name: str, revision: str | None) -> bool:
    """Return whether the server answers a question about a model within `CACHED_TIMEOUT` seconds.

    A thread asks, because the system sets no limit to the time that it looks up an address.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, HTTPError

    answers: SimpleQueue[bool] = SimpleQueue()

    def ask() -> None:
        is_answer = True
        try:
            HfApi().model_info(name, revision=revision)
        except Exception as error:
            # `_snapshot` describes what is wrong with an answer.
            is_answer = isinstance(error, HfHubHTTPError) or not isinstance(error, HTTPError)
        answers.put(is_answer)

    Thread(target=ask, daemon=True).start()
    try:
        return answers.get(timeout=CACHED_TIMEOUT)
    except Empty:
        return False


def _snapshot(name: str, revision: str | None, local_files_only: bool = False) -> Path:
    """Return the folder of a commit in the cache, after a download unless `local_files_only`."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        EntryNotFoundError,
        FileMetadataError,
        HTTPError,
        XetDownloadError,
    )

    try:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=DOWNLOADED,
            ignore_patterns=NOT_DOWNLOADED,
            local_files_only=local_files_only,
        )
    except InputError as error:
        raise InputError(f"{HUB}{name}: {error}") from None
    except (EntryNotFoundError, HTTPError, XetDownloadError) as error:
        raise InputError(f"{HUB}{name}: {_describe(error, revision)}") from None
    except (FileMetadataError, *MALFORMED_ERRORS):
        raise InputError(
            f"{HUB}{name}: the answer of {constants.ENDPOINT} is not as a hub writes it; check "
            "HF_ENDPOINT and the proxy, or try again"
        ) from None
    return Path(folder)


@cache
def guard_client() -> None:
    """Check all answers that huggingface_hub gets from servers, and limit how long it waits.

    It joins ETags and commits to the path of the cache as the server sends them, so that a server
    could write anywhere.
    """
    from huggingface_hub import set_client_factory
    from huggingface_hub.utils import _http

    # huggingface_hub has no public function for the present factory, which may be the user's.
    make_client = _http._GLOBAL_CLIENT_FACTORY

    def make_guarded_client() -> Any:
        client = make_client()
        client.event_hooks["request"].append(_limit_wait)
        client.event_hooks["response"].append(_check_answer)
        return client

    set_client_factory(make_guarded_client)


def _limit_wait(request: Any) -> None:
    """Set the timeouts of requests for which huggingface_hub sets none."""
    is_question = request.method == "GET" and API in request.url.path
    timeouts = request.extensions["timeout"]
    for phase, seconds in timeouts.items():
        if seconds is None:
            is_short = is_question or phase == "connect"
            timeouts[phase] = TIMEOUT if is_short else UPLOAD_TIMEOUT


def _check_answer(response: Any) -> None:
    """Refuse an answer with a commit or a checksum that could be a path."""
    path = response.request.url.path
    if response.request.method == "HEAD":
        for header, pattern in HEADERS.items():
            _check_digest(path, header, response.headers.get(header), pattern)
    elif API in path and response.status_code == 200:
        response.read()
        data = json.loads(response.content)
        rows = data if isinstance(data, list) else [data]
        for row in rows:
            # Large files have their checksum in a row of their own.
            for part in (row, row.get("lfs") or {}):
                for field, pattern in FIELDS.items():
                    _check_digest(path, field, part.get(field), pattern)


def _check_digest(path: str, name: str, value: Any, pattern: re.Pattern[str]) -> None:
    if value is not None and not (isinstance(value, str) and pattern.fullmatch(value)):
        raise InputError(
            f"the server answered {path:.200} with the {name} {shown(value)}; expected hexadecimal "
            "digits: use another server (HF_ENDPOINT)"
        )


def _describe(error: Exception, revision: str | None) -> str:
    """Describe why a model cannot be downloaded, and what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        HfHubHTTPError,
        RemoteEntryNotFoundError,
        RevisionNotFoundError,
    )

    server = constants.ENDPOINT
    if constants.HF_HUB_OFFLINE:
        return (
            f"not in the cache {constants.HF_HUB_CACHE}; unset HF_HUB_OFFLINE to download it, or "
            "check the name"
        )
    if isinstance(error, RevisionNotFoundError):
        return f"no revision {revision!r:.60} of it on {server}; check the branch, tag or commit"
    if isinstance(error, RemoteEntryNotFoundError):
        path = error.response.request.url.path
        return f"{server} lists a file that it does not have ({path:.200}); use another revision"
    cause: BaseException = error
    if not isinstance(error, HfHubHTTPError) and error.__cause__ is not None:
        # No copy is cached, because the server gave this answer.
        cause = error.__cause__
    if isinstance(cause, HfHubHTTPError):
        return _describe_status(cause.response.status_code, server)
    return (
        f"the download from {server} failed ({first_line(cause):.150}); check the connection, the "
        "proxy and HF_ENDPOINT"
    )


def _describe_status(status: int, server: str) -> str:
    """Describe what the status of an HTTP response says about a model."""
    if status in (401, 403, 404):
        return (
            f"no such model on {server}, or it is private; check the name, or set HF_TOKEN to a "
            "token that may read it"
        )
    if status == 429:
        return f"{server} refuses more requests for now (429); try again later"
    return f"{server} answered with status {status} instead of the model; try again later"
