"""Summarizes training logs and scores in one HTML page that needs no network."""

from fairseq_lxsr.report.page import write_report
from fairseq_lxsr.report.sample import Sample, measure_sample

__all__ = ["Sample", "measure_sample", "write_report"]
