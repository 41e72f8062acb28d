"""Downloads models from a hub of models, the Hugging Face Hub or another server in $HF_ENDPOINT.

The files are stored in the cache that all libraries of the hub share. Settings of `huggingface_hub`
apply: HF_HOME, HF_HUB_OFFLINE, HF_ENDPOINT and HF_TOKEN.
"""

import re
from functools import cache
from pathlib import Path

from fairseq_lxsr.errors import InputError, first_line
from fairseq_lxsr.machine import require

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


@cache
def download_model(name: str, revision: str | None = None) -> Path:
    """Return the folder of a model from a hub, downloading its files unless they are cached.

    If the server does not answer, a cached copy is used. Within a process, a name always refers to
    the same files, even if somebody uploads a new version.

    Args:
        name: name of the model, ORGANISATION/MODEL.
        revision: branch, tag or commit; None for the newest version.

    Raises:
        InputError: if huggingface_hub is missing, the model does not exist, or the download fails.
    """
    require("huggingface_hub", "hub", f"{name}: no such model folder; a download from a hub")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import EntryNotFoundError, HTTPError, XetDownloadError

    try:
        folder = snapshot_download(
            name, revision=revision, allow_patterns=DOWNLOADED, ignore_patterns=NOT_DOWNLOADED
        )
    except (EntryNotFoundError, HTTPError, XetDownloadError, ValueError) as error:
        problem = _describe(error, revision)
        raise InputError(f"{name}: no such model folder, and {problem}") from None
    return Path(folder)


def _describe(error: Exception, revision: str | None) -> str:
    """Describe why a model cannot be downloaded, and what to do."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        EntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    server = constants.ENDPOINT
    if isinstance(error, RevisionNotFoundError):
        return f"no revision {revision!r:.60} of it on {server}; check the branch, tag or commit"
    if isinstance(error, RepositoryNotFoundError):
        return (
            f"no such model on {server}, or it is private; check the name, or set HF_TOKEN to a "
            "token that may read it"
        )
    if not isinstance(error, EntryNotFoundError):
        return f"the download from {server} failed ({first_line(error):.150}); try again"
    if constants.HF_HUB_OFFLINE:
        return (
            f"not in the cache {constants.HF_HUB_CACHE}; unset HF_HUB_OFFLINE to download it, or "
            "check the name"
        )
    return f"{server} does not answer; check the connection, or the name of the folder"
