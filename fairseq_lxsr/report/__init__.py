"""Writes training logs and scores to one HTML page that needs no network."""

from fairseq_lxsr.report.page import write_report
from fairseq_lxsr.report.sample import Sample, look_at

__all__ = ["Sample", "look_at", "write_report"]
