"""Writes models in the formats of other tools; a form is imported, with the libraries it needs, when first used."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fairseq_lxsr.export.hub import export_hub
    from fairseq_lxsr.export.mteb_encoder import MtebEncoder
    from fairseq_lxsr.export.onnx import export_onnx
    from fairseq_lxsr.export.st_folder import export_sentence_transformers
    from fairseq_lxsr.export.web_page import export_web

__all__ = ["MtebEncoder", "export_hub", "export_onnx", "export_sentence_transformers", "export_web"]
_MODULES = {
    "MtebEncoder": "mteb_encoder",
    "export_hub": "hub",
    "export_onnx": "onnx",
    "export_sentence_transformers": "st_folder",
    "export_web": "web_page",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
