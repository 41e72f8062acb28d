"""Protocols of `lxsr eval`, one module each; a new file here is a new protocol."""

import importlib
import pkgutil

from fairseq_lxsr.evaluation.protocols.protocol import Plan, Protocol

__all__ = ["Plan", "Protocol", "all_protocols"]


def all_protocols() -> list[Protocol]:
    """Every protocol there is, by name."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [protocol for module in modules for protocol in getattr(module, "PROTOCOLS", ())]
    return sorted(found, key=lambda protocol: protocol.name)
