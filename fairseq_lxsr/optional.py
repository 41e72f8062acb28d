"""Packages that only some commands need."""

import importlib.util

from fairseq_lxsr.errors import InputError


def require(module: str, extra: str, what: str) -> None:
    """Check for an optional package before any work is done.

    Args:
        module: the name that is imported.
        extra: of fairseq-lxsr, which brings it.
        what: needs it, for the message.

    Raises:
        InputError: naming the command that installs it.
    """
    if is_missing(module):
        raise InputError(f"{what} needs {module}, which is not installed: pip install 'fairseq-lxsr[{extra}]'")


def is_missing(module: str) -> bool:
    """Whether a module cannot be imported; nothing but the packages that it lies in is."""
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # of the package that it lies in
        return True
