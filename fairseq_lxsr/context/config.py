"""Everything that `lxsr train-context` can be told."""

from collections.abc import Mapping
from dataclasses import dataclass

from fairseq_lxsr.choices import DTYPES
from fairseq_lxsr.errors import InputError

AT_LEAST_ONE = ("valid_documents", "shards", "context", "epochs", "draw", "best", "pairs", "batch_size", "workers")


@dataclass(frozen=True)
class ContextConfig:
    """Both stages and all rounds (Wang et al.; their values are the defaults where they give them).

    Args:
        documents: file or folder of each language.
        work: folder that gets everything.
        arch: a preset of context_transformer.
        valid_documents: of each language, held out.
        shards: parts of the training data, of whole documents; the first stage holds one at a time in memory.
        context: sentences before and after each.
        epochs: of the first stage.
        rounds: of mining and regression.
        draw: m, sentences of either language that are looked at together.
        best: pairs kept of a draw, at most.
        pairs: pairs of a round.
        start_model: model folder of another encoder that mines the first round, for example one of little parallel
            text; without it the first stage does.
        gold: file of true pairs, `sentence<TAB>sentence`; where given, the precision of the mined ones is reported.
        batch_size: samples of an update.
        learning_rate: falls linearly to zero in every stage and round.
    """

    documents: Mapping[str, str]
    work: str = "work/context"
    arch: str = "context_transformer_base"
    vocab_size: int = 16_000
    lowercase: bool = True
    split_han: bool = True
    valid_documents: int = 10
    shards: int = 1
    context: int = 1
    epochs: int = 1
    rounds: int = 3
    draw: int = 10_000
    best: int = 1_000
    pairs: int = 100_000
    start_model: str = ""
    gold: str = ""
    batch_size: int = 128
    learning_rate: float = 1e-4
    dropout: float = 0.1
    max_positions: int = 150
    seed: int = 1
    workers: int = 2
    cpu_precision: str = "auto"
    encode_dtype: str = "float32"

    def __post_init__(self):
        for name in AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise InputError(f"{name} {getattr(self, name)}; expected 1 or more")
        for name in ("rounds", "seed"):
            if getattr(self, name) < 0:
                raise InputError(f"{name} {getattr(self, name)}; expected 0 or more")
        if self.encode_dtype not in DTYPES:
            raise InputError(f"encode_dtype {self.encode_dtype!r}; expected one of {', '.join(DTYPES)}")
        if not isinstance(self.documents, Mapping) or not all(
            isinstance(name, str) for item in self.documents.items() for name in item
        ):
            raise InputError(f"documents: {self.documents!r:.60}; expected for example {{en: en.txt, 'no': no.txt}}")
        if self.rounds and len(self.documents) < 2:
            raise InputError(f"documents: {', '.join(self.documents) or 'none'}; expected two languages or more")
