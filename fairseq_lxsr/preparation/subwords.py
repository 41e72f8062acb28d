"""One SentencePiece model and one dictionary for all languages."""

import io
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import read_lines
from fairseq_lxsr.text import DICTIONARY_FILE, MASK, PAD, SENTENCEPIECE_FILE, SPECIAL, TEXT_FILE, TextOptions, normalise
from fairseq_lxsr.preparation.stages import run_stage
from fairseq_lxsr.preparation.workers import blocks

MODEL_TYPES = ("bpe", "unigram")
NORMALISATIONS = ("nmt_nfkc", "nmt_nfkc_cf", "nfkc", "nfkc_cf", "identity")


def train_subwords(
    folder: Path,
    corpora: Sequence[Path],
    vocab_size: int,
    lowercase: bool = True,
    character_coverage: float = 1.0,
    max_sentences: int = 1_000_000,
    model_type: str = "bpe",
    byte_fallback: bool = False,
    normalisation: str = "nmt_nfkc",
    split_han: bool = False,
) -> dict:
    """The subwords stage: SentencePiece on the training sides of all corpora, and the dictionary made of its pieces.

    Args:
        vocab_size: entries of the dictionary, fairseq's four specials and <mask> included.
        max_sentences: SentencePiece learns from so many lines at most, the same number of every language where they
            have them, drawn evenly.
        model_type: `bpe` or `unigram`.
        byte_fallback: characters without a piece become bytes instead of <unk>.
        normalisation: a rule of SentencePiece (nmt_nfkc, nfkc, identity, ...); it lies in its model.
        split_han: every Chinese character is a word of its own.
    """
    files = [path for corpus in corpora for path in sorted(corpus.glob("train.*"))]
    text = TextOptions(lowercase, split_han)
    options = {
        "vocab_size": vocab_size,
        "lowercase": lowercase,
        "character_coverage": character_coverage,
        "max_sentences": max_sentences,
        "model_type": model_type,
        "byte_fallback": byte_fallback,
        "normalisation": normalisation,
        "split_han": split_han,
        "sentencepiece": sentencepiece.__version__,
    }

    def build(work: Path) -> dict:
        lines = (normalise(line, text) for line in sample(files, max_sentences))
        how = {
            "character_coverage": character_coverage,
            "model_type": model_type,
            "byte_fallback": byte_fallback,
            "normalization_rule_name": normalisation,
        }
        train_model(lines, work / SENTENCEPIECE_FILE, vocab_size, how)
        pieces = list(dictionary_pieces(work / SENTENCEPIECE_FILE))
        (work / DICTIONARY_FILE).write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
        (work / TEXT_FILE).write_text(text.dumps(), encoding="utf-8")
        return {"dictionary": len(pieces) + len(SPECIAL) + 1}

    report = run_stage(folder, options, files, build)
    print(
        f"{folder}: SentencePiece {model_type}, dictionary of {report['dictionary']:,}"
        f"{', lower case' if lowercase else ''}"
    )
    return report


def sample(files: Sequence[Path], most: int) -> Iterator[str]:
    """At most `most` lines of files LINES.LANGUAGE, as many of every language where it has them, always the same."""
    languages = Counter[str]()
    for path in files:
        with open(path, "rb") as stream:
            languages[path.suffix] += sum(1 for _ in stream)
    quota = most // max(1, len(languages))
    for path in files:
        share = min(1.0, quota / max(1, languages[path.suffix]))
        rng = np.random.default_rng(0)
        for block in blocks(read_lines(path, max_words=None)):
            yield from itertools.compress(block, rng.random(len(block)) < share)


def train_model(lines: Iterator[str], path: Path, vocab_size: int, how: Mapping[str, Any]):
    """Train a model.

    Args: how: further options of SentencePiece's trainer.
    Raises: InputError with the largest possible size where the text cannot give `vocab_size` pieces.
    """
    model = io.BytesIO()  # SentencePiece itself does not notice a full disk
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=(line for line in lines if line),
            model_writer=model,
            vocab_size=vocab_size,
            **how,
            # so that text that happens to hold them never becomes one piece
            control_symbols=[PAD, MASK],
            num_threads=2,
            minloglevel=2,
        )
    except InputError:
        raise
    except (RuntimeError, OSError, ValueError) as error:
        most = re.search(r"<= (\d+)", str(error))
        if most:
            raise InputError(
                f"--vocab-size {vocab_size:,}: this text gives at most {int(most[1]):,} pieces; choose a smaller size"
            ) from None
        least = re.search(r"smaller than required_chars\S*\s+\d+ vs (\d+)", str(error))
        if least or "required_chars" in str(error):
            raise InputError(
                f"--vocab-size {vocab_size:,}: too small for the characters of this text; choose a larger size or a "
                "lower --character-coverage"
            ) from None
        raise InputError(f"SentencePiece could not be trained: {str(error).strip().splitlines()[-1]}") from None
    path.write_bytes(model.getvalue())


def dictionary_pieces(model: Path) -> Iterator[str]:
    """Pieces of a SentencePiece model in its order, without the specials, which fairseq adds itself."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for index in range(processor.GetPieceSize()):
        if not (processor.IsControl(index) or processor.IsUnknown(index)):
            yield processor.IdToPiece(index)
