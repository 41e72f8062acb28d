"""Entry point of `fairseq-train --user-dir`."""

from fairseq_lxsr import training  # noqa: F401  registers everything
