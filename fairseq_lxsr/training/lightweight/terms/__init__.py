"""Loss terms for task `xling_sent`, one file each.

A term declares its options, its batch fields, its head in the model, and its loss. All modules in
this folder are imported, so a new term requires only a new file, here or in another package.
"""

import importlib
import pkgutil
from dataclasses import fields
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training.lightweight.terms.term import Batch, Encoded, Setting, Split, Term

__all__ = ["Batch", "Encoded", "Setting", "Split", "Term", "all_terms", "build_terms"]


def all_terms() -> tuple[type[Term], ...]:
    """Import the terms of this package, and return all terms, sorted by name."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    return tuple(sorted(Term.__subclasses__(), key=lambda term: term.name))


def build_terms(cfg: Any, setting: Setting) -> list[Term]:
    """Build the terms that the task options enable.

    Raises:
        InputError: if no term has a weight greater than 0.
    """
    terms = []
    for kind in all_terms():
        term = kind.build(cfg, setting)
        if term is not None and not hasattr(term, "state"):
            raise InputError(
                f"{kind.__module__}.{kind.__name__}: __init__ must call super().__init__(weight)"
            )
        if term is not None:
            terms.append(term)
    if not any(term.weight for term in terms):
        raise InputError(
            f"no loss to train with: --objective {cfg.objective}, {_weights(cfg)}, no "
            "--teacher-embeddings; enable at least one of them"
        )
    return terms


def _weights(cfg: Any) -> str:
    """Return the weights of all terms as options, `--gen-weight 0, --align-weight 0`."""
    options = []
    for kind in all_terms():
        for field in fields(kind.Options):
            if field.name.endswith("_weight"):
                name = field.name.replace("_", "-")
                options.append(f"--{name} {getattr(cfg, field.name):g}")
    return ", ".join(options)
