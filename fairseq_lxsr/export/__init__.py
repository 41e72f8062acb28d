"""Writes models in the formats of other tools; each format is imported when it is first used."""

from typing import TYPE_CHECKING

from fairseq_lxsr.machine import lazy_getattr

if TYPE_CHECKING:
    from fairseq_lxsr.export.hub import export_hub, push_to_hub
    from fairseq_lxsr.export.mteb_encoder import MtebEncoder
    from fairseq_lxsr.export.onnx import export_onnx
    from fairseq_lxsr.export.st_folder import export_sentence_transformers
    from fairseq_lxsr.export.web_page import export_web

__all__ = [
    "MtebEncoder",
    "export_hub",
    "export_onnx",
    "export_sentence_transformers",
    "export_web",
    "push_to_hub",
]
_MODULES = {
    "hub": ("export_hub", "push_to_hub"),
    "mteb_encoder": ("MtebEncoder",),
    "onnx": ("export_onnx",),
    "st_folder": ("export_sentence_transformers",),
    "web_page": ("export_web",),
}
__getattr__ = lazy_getattr(__name__, _MODULES)
