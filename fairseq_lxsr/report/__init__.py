"""Writes training logs and scores to one HTML page that needs no network."""

from fairseq_lxsr.export.card import write_card
from fairseq_lxsr.report.page import require_libraries, write_report
from fairseq_lxsr.report.sample import Sample, look_at

__all__ = ["Sample", "look_at", "require_libraries", "write_card", "write_report"]
