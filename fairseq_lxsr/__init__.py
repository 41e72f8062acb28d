"""Lightweight cross-lingual sentence representations: train with fairseq, use without it."""

import importlib
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_lxsr.encoder import SentenceEncoder

__version__ = "0.1.0"
__all__ = ["SentenceEncoder", "__version__"]


class _PackagePath(list[str]):
    """Folder of this package, which registers the tasks if fairseq asks for it.

    For --user-dir, fairseq imports no package that is already imported. It only asks whether the
    folder is in the `__path__` of that package.
    """

    def __contains__(self, folder: object) -> bool:
        is_inside = super().__contains__(folder)
        if is_inside and "fairseq.tasks" in sys.modules:
            importlib.import_module("fairseq_lxsr.tasks.families")
        return is_inside


__path__ = _PackagePath(__path__)


def __getattr__(name: str) -> Any:
    # Imported on first use, because torch takes seconds to load.
    if name == "SentenceEncoder":
        from fairseq_lxsr.encoder import SentenceEncoder

        return SentenceEncoder
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
