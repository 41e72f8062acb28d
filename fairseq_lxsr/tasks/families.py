"""The door of `fairseq-train --user-dir`: fairseq imports every module of this folder, and so the three families."""

import fairseq_lxsr.training.adam
import fairseq_lxsr.training.context.model
import fairseq_lxsr.training.context.task
import fairseq_lxsr.training.laser.criterion
import fairseq_lxsr.training.laser.lstm
import fairseq_lxsr.training.laser.task
import fairseq_lxsr.training.laser.transformer
import fairseq_lxsr.training.lightweight.criterion
import fairseq_lxsr.training.lightweight.model
import fairseq_lxsr.training.lightweight.task
import fairseq_lxsr.training.mends  # noqa: F401
