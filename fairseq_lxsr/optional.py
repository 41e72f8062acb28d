"""Checks for optional packages, which only some commands need."""

import importlib.util

from fairseq_lxsr.errors import InputError


def require(module: str, extra: str, what: str) -> None:
    """Check for an optional package before any work is done.

    Args:
        module: name of the module to import.
        extra: extra of fairseq-lxsr that installs it.
        what: name of what needs it, for the message.

    Raises:
        InputError: naming the command that installs it.
    """
    if is_missing(module):
        raise InputError(f"{what} needs {module}, which is not installed: pip install 'fairseq-lxsr[{extra}]'")


def is_missing(module: str) -> bool:
    """Return whether a module is missing; only its parent packages are imported."""
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # the parent package is missing
        return True
