"""Term `align`: each sentence must retrieve its translation (Mao et al. 2021, Eq. 5)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import torch
import torch.distributed as dist
import torch.nn.functional as F
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from omegaconf import II
from torch import Tensor, nn

from fairseq_lxsr import losses
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.losses.alignment import ALIGN_SIMILARITIES
from fairseq_lxsr.modules import TransformerConfig
from fairseq_lxsr.modules.sizes import WIDTH
from fairseq_lxsr.options import LOSS_WEIGHT, TEMPERATURE, NumberList, option
from fairseq_lxsr.training.dataset import DrawnPairs, Part
from fairseq_lxsr.training.lightweight.parts.hard_negatives import HARD_NEGATIVES, HardNegatives
from fairseq_lxsr.training.lightweight.terms.term import Batch, Encoded, Setting, Split, Term

WIDTHS = NumberList(WIDTH)


@dataclass
class AlignmentOptions(FairseqDataclass):
    align_weight: float = option(
        "weight of the contrastive alignment loss (align); 0 disables it", 2.0, LOSS_WEIGHT
    )
    align_similarity: ChoiceEnum(ALIGN_SIMILARITIES) = option(  # type: ignore[valid-type]
        "similarity in the align loss: inner product (as in the paper) or cosine", "inner"
    )
    align_temperature: float = option(
        "softmax temperature of the align loss; use 0.05 to 0.1 for cosine",
        1.0,
        TEMPERATURE,
    )
    hard_negatives: ChoiceEnum(("none", *HARD_NEGATIVES)) = option(  # type: ignore[valid-type]
        "add a hard negative per pair to the align loss, created by altering one of its "
        "sentences: swap (swap two words, which teaches word order), edit (remove, replace "
        "or add a word), both (either, with equal probability); makes encoding 50 percent slower; "
        "requires --objective none",
        "none",
    )
    gather_negatives: bool = option(
        "use the sentences of all workers as negatives in the align loss; requires --batch-size",
        False,
    )
    matryoshka: Optional[str] = option(
        "also compute the align loss on embeddings truncated to these widths, such as "
        "64,128,256 (Kusupati et al. 2022), so that `lxsr embed --truncate-dim` can shorten them",
        None,
        WIDTHS,
    )
    batch_size: Optional[int] = II("dataset.batch_size")
    batch_size_valid: Optional[int] = II("dataset.batch_size_valid")


class AlignmentTerm(Term):
    """Cross-entropy over the similarities to candidate translations, in both directions."""

    name, Options = "align", AlignmentOptions

    def __init__(self, cfg: Any, setting: Setting):
        super().__init__(cfg.align_weight)
        self.similarity = str(cfg.align_similarity)
        self.scale = 1 / cfg.align_temperature
        self.hard_negatives = str(cfg.hard_negatives)
        # Number of rows gathered from each worker; None if only the local batch is used.
        self.gathered_rows: int | None = None
        if cfg.gather_negatives:
            self.gathered_rows = cfg.batch_size
        self.vocabulary = setting.vocabulary
        self.widths: Sequence[int] = ()
        if cfg.matryoshka:
            self.widths = WIDTHS.parse(cfg.matryoshka)

    @classmethod
    def build(cls, cfg: Any, setting: Setting) -> "AlignmentTerm | None":
        options = {
            "--hard-negatives": cfg.hard_negatives != "none",
            "--matryoshka": cfg.matryoshka,
            "--gather-negatives": cfg.gather_negatives,
        }
        for name, is_set in options.items():
            if is_set and not cfg.align_weight:
                raise InputError(
                    f"{name} has no effect with --align-weight 0; use a positive weight, or drop "
                    f"{name}"
                )
        if not cfg.align_weight:
            return None
        if cfg.gather_negatives:
            check_gathering(cfg)
        return cls(cfg, setting)

    def parts(self, split: Split) -> Sequence[Part]:
        parts: list[Part] = []
        if self.gathered_rows:
            parts.append(PairNumbers())
        if self.hard_negatives != "none":
            parts.append(HardNegatives(self.hard_negatives, self.vocabulary.starts_word))
        return parts

    def heads(self, config: TransformerConfig) -> dict[str, nn.Module]:
        """Check that the widths are valid for the model. This term does not add modules."""
        if self.widths and self.widths[-1] > config.output_dim:
            raise InputError(
                f"--matryoshka {','.join(map(str, self.widths))} exceeds the embedding width "
                f"{config.output_dim}"
            )
        return {}

    def loss(self, encoded: Encoded, batch: Batch, training: bool) -> Tensor:
        embeddings = encoded["embeddings"]
        u = embeddings["source"]
        v = embeddings["target"]
        options: dict[str, Any] = {
            "similarity": self.similarity,
            "scale": self.scale,
            "cosines": encoded.get("cosines"),
        }
        if "negative" in embeddings:
            options["negatives"] = losses.Negatives(embeddings["negative"], batch["negative_of"])
        if self.gathered_rows and dist.is_initialized():
            numbers = batch["pair_number"]
            is_dummy = batch.get("is_dummy", False)
            options["candidates"], everyones = gather_rows(
                u, v, numbers, self.gathered_rows, is_dummy
            )
            options["same_text"] = same_pair(numbers, everyones, options["candidates"].first)
        if self.widths:
            widths = sorted({*self.widths, u.shape[1]})
            return losses.matryoshka_alignment_loss(u, v, widths, **options)
        return losses.alignment_loss(u, v, **options)


def check_gathering(cfg: Any) -> None:
    """Check that every batch fits into the fixed number of rows that workers exchange.

    Raises:
        InputError: if --batch-size is missing, or less than --batch-size-valid.
    """
    if cfg.batch_size is None:
        raise InputError(
            "--gather-negatives requires --batch-size, because workers exchange batches of equal "
            "size"
        )
    if (cfg.batch_size_valid or 0) > cfg.batch_size:
        raise InputError(
            f"--batch-size-valid {cfg.batch_size_valid} exceeds --batch-size {cfg.batch_size}, "
            "which --gather-negatives does not support"
        )


class PairNumbers:
    """Adds the index of each pair in the training text to a batch, as `pair_number`.

    By this index, a worker recognizes copies of its pairs in the batches of other workers: if an
    epoch draws a pair several times, all occurrences have the same index.
    """

    def __call__(self, batch: dict[str, Any], pairs: DrawnPairs) -> None:
        batch["pair_number"] = pairs.index % len(pairs.dataset)


def same_pair(numbers: Tensor, of_candidates: Tensor, first: int) -> Tensor:
    """Find candidates that are copies of the true translation, and are therefore not negatives.

    Args:
        numbers: `pair_number` of each pair [B].
        of_candidates: `pair_number` of each candidate [C].
        first: index of the first pair among the candidates; pair i is candidate `first + i`.

    Returns:
        A mask [2, B, C] that is true for such candidates: mask[0] for candidates from v, mask[1]
        for candidates from u.
    """
    # [B, C]
    equal = numbers[:, None] == of_candidates
    candidate = torch.arange(len(of_candidates), device=numbers.device)
    return (equal & (candidate != candidate[first : first + len(numbers), None])).expand(2, -1, -1)


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows: Tensor) -> Tensor:
        return _all_gather(rows)

    @staticmethod
    def backward(ctx, grad: Tensor) -> Tensor:
        # The losses of all workers use these rows, and fairseq sums the gradients of the workers.
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(dist.get_world_size())[dist.get_rank()]


def _all_gather(rows: Tensor) -> Tensor:
    gathered = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, rows.contiguous())
    return torch.cat(gathered)


def gather_rows(
    u: Tensor, v: Tensor, numbers: Tensor, capacity: int, is_dummy: bool = False
) -> tuple[losses.Candidates, Tensor]:
    """Gather the pair embeddings from all W workers.

    Each worker pads its batch to `capacity` rows, so that workers need not exchange sizes.

    Args:
        u: source embeddings of this worker [B, D].
        v: target embeddings of this worker [B, D].
        numbers: `pair_number` of each pair of this worker [B].
        capacity: number of rows from each worker, at least B.
        is_dummy: True if this worker has no batch left; other workers then ignore its rows.

    Returns:
        The C = W * `capacity` candidates, and the `pair_number` of each of them [C].
    """
    padding = (0, 0, 0, capacity - len(u))
    all_u, all_v = _AllGather.apply(F.pad(torch.cat((u, v), dim=1).float(), padding)).split(
        u.shape[1], dim=1
    )
    # Whether each row is a candidate [B].
    is_candidate = torch.full_like(numbers, not is_dummy)
    # The `pair_number` of each candidate, and whether it is not padding, [C] each.
    all_numbers, real = _all_gather(F.pad(torch.stack((numbers, is_candidate), dim=1), padding)).T
    return losses.Candidates(all_u, all_v, dist.get_rank() * capacity, real.gt(0)), all_numbers
