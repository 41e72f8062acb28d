"""One SentencePiece BPE model and one dictionary for all languages."""

import io
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import sentencepiece

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files import read_lines
from fairseq_lxsr.text import MASK, PAD, SENTENCEPIECE_FILE, SPECIAL, TEXT_FILE, TextOptions, normalise
from preprocess.stages import run_stage

DICTIONARY_FILE = "dict.txt"


def train_subwords(
    folder: Path,
    corpora: Sequence[Path],
    vocab_size: int,
    lowercase: bool = True,
    character_coverage: float = 1.0,
    max_sentences: int = 5_000_000,
) -> dict:
    """The subwords stage: SentencePiece on the training sides of all corpora, and the dictionary made of its pieces.

    Args:
        vocab_size: entries of the dictionary, fairseq's four specials and <mask> included.
        max_sentences: at most so many lines are read by SentencePiece, drawn evenly.
    """
    files = [path for corpus in corpora for path in sorted(corpus.glob("train.*"))]
    text = TextOptions(lowercase=lowercase)
    options = {
        "vocab_size": vocab_size,
        "lowercase": lowercase,
        "character_coverage": character_coverage,
        "max_sentences": max_sentences,
        "sentencepiece": sentencepiece.__version__,
    }

    def build(work: Path) -> dict:
        lines = (normalise(line, text) for path in files for line in read_lines(path))
        train_model(lines, work / SENTENCEPIECE_FILE, vocab_size, character_coverage, max_sentences)
        pieces = list(dictionary_pieces(work / SENTENCEPIECE_FILE))
        (work / DICTIONARY_FILE).write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
        (work / TEXT_FILE).write_text(text.dumps(), encoding="utf-8")
        return {"dictionary": len(pieces) + len(SPECIAL) + 1}

    report = run_stage(folder, options, files, build)
    print(f"{folder}: SentencePiece BPE, dictionary of {report['dictionary']:,}{', lower case' if lowercase else ''}")
    return report


def train_model(lines: Iterator[str], path: Path, vocab_size: int, character_coverage: float, max_sentences: int):
    """Train a BPE model.

    Raises: InputError with the largest possible size where the text cannot give `vocab_size` pieces.
    """
    model = io.BytesIO()  # SentencePiece itself does not notice a full disk
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=(line for line in lines if line),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            character_coverage=character_coverage,
            input_sentence_size=max_sentences,
            shuffle_input_sentence=True,
            # so that text that happens to hold them never becomes one piece
            control_symbols=[PAD, MASK],
            num_threads=2,
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
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
