"""Description of the endpoints, for programs that generate clients."""

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from fairseq_lxsr import __version__

OPENAPI_FILE = Path(__file__).with_name("openapi.json")


def description(endpoints: Collection[str]) -> dict[str, Any]:
    """Return the description of a server, in the format of OpenAPI 3.1.

    Args:
        endpoints: methods and paths of the server, such as `GET /health`.
    """
    content = json.loads(OPENAPI_FILE.read_text(encoding="utf-8"))
    content["info"]["version"] = __version__
    paths = {}
    for path, operations in content["paths"].items():
        if any(f"{method.upper()} {path}" in endpoints for method in operations):
            paths[path] = operations
    content["paths"] = paths
    return content
