"""Terms of the training loss of task `xling_sent`, one file each.

A term declares its options, what it needs in a batch, the head it needs in the model, and its loss.
Every module of this folder is imported, so a new term is one new file: no other file has to name
it.
"""

import functools
import importlib
import pkgutil
from typing import Any

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.training.lightweight.terms.term import Batch, Encoded, Setting, Split, Term

__all__ = ["Batch", "Encoded", "Setting", "Split", "Term", "all_terms", "build_terms"]


@functools.cache
def all_terms() -> tuple[type[Term], ...]:
    """Import and return all terms, sorted by name."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
    return tuple(sorted(Term.__subclasses__(), key=lambda term: term.name))


def build_terms(cfg: Any, setting: Setting) -> list[Term]:
    """Build the terms that the options of the task ask for."""
    terms = [term for kind in all_terms() if (term := kind.build(cfg, setting)) is not None]
    if not any(term.weight for term in terms):
        raise InputError(
            f"--objective {cfg.objective}, --gen-weight {cfg.gen_weight:g}, --align-weight {cfg.align_weight:g}, "
            f"--sim-weight {cfg.sim_weight:g}, no --teacher-embeddings: nothing to train; expected one of them"
        )
    return terms
