"""Ask the server of this container for its health; fail if it does not answer.

The port is that of process 1, `lxsr serve --port N`.
"""

import argparse
import urllib.request
from pathlib import Path


def port_of(words: list[str]) -> int:
    """Return the port of a command line of `lxsr serve`."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--port", type=int, default=8000)
    # After --, which `docker run --init` adds, argparse would read no options.
    options, _ = parser.parse_known_args([word for word in words if word != "--"])
    return options.port


if __name__ == "__main__":
    words = Path("/proc/1/cmdline").read_text("utf-8").split("\0")
    urllib.request.urlopen(f"http://127.0.0.1:{port_of(words)}/health", timeout=4)
