"""Loss terms for task `xling_sent`, one file each.

A term declares its options, its batch fields, its head in the model, and its loss. All modules in
this folder are imported, so a new term requires only a new file, here or in another package.
"""

import importlib
import pkgutil
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
        if term is not None:
            terms.append(term)
    if not any(term.weight for term in terms):
        raise InputError(
            f"no loss to train with: --objective {cfg.objective}, --gen-weight {cfg.gen_weight:g}, "
            f"--align-weight {cfg.align_weight:g}, --sim-weight {cfg.sim_weight:g}, no "
            "--teacher-embeddings; enable at least one of them"
        )
    return terms
