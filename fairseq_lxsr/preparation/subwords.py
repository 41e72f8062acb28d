"""Trains one SentencePiece model and makes one dictionary for all languages."""

import io
import itertools
import re
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import sentencepiece

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import count_file_lines, is_blank, read_lines
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.stages import run_stage
from fairseq_lxsr.preparation.workers import call_in_subprocess, in_blocks
from fairseq_lxsr.text.chinese import simplified_characters
from fairseq_lxsr.text.tokenizer import (
    DICTIONARY_FILE,
    MASK,
    PAD,
    SENTENCEPIECE_FILE,
    SPECIAL,
    TEXT_FILE,
    TEXT_VERSION,
    TextOptions,
    normalise,
)

# SentencePiece leaves out longer lines and those with this character, its mark of an unknown one,
# without a word
LINE_BYTES, RESERVED = 4192, "\u2585"


def train_subwords(folder: Path, corpora: Sequence[Path], how: SubwordOptions) -> dict:
    """Run the subwords stage: train SentencePiece on the training text of all corpora, and write
    the dictionary.
    """
    files = [path for corpus in corpora for path in sorted(corpus.glob("train.*"))]
    characters = simplified_characters() if how.simplify_chinese else ""
    text = TextOptions(how.lowercase, how.split_han, TEXT_VERSION, characters)
    options = asdict(how) | {"sentencepiece": sentencepiece.__version__, "read_as": text.read_as}
    later = ["from_model", "new_pieces"]  # as before there were these options
    later += [] if how.simplify_chinese else ["simplify_chinese", "read_as"]
    options = {name: value for name, value in options.items() if name not in later}

    def build(work: Path) -> dict:
        (work / SENTENCEPIECE_FILE).write_bytes(call_in_subprocess(train_model, files, how, text))
        pieces = list(dictionary_pieces(work / SENTENCEPIECE_FILE))
        (work / DICTIONARY_FILE).write_text(
            "".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8"
        )
        (work / TEXT_FILE).write_text(text.dumps(), encoding="utf-8")
        return {"dictionary": len(pieces) + len(SPECIAL) + 1}

    report = run_stage(folder, options, files, build)
    print(
        f"{folder}: SentencePiece {how.model_type}, dictionary of {report['dictionary']:,}"
        f"{', lower case' if how.lowercase else ''}{', simplified Chinese' if how.simplify_chinese else ''}"
    )
    return report


def sample(files: Sequence[Path], most: int) -> Iterator[str]:
    """Yield lines of files LINES.LANGUAGE, equally many per language; the choice is deterministic.

    Each line is drawn by itself, so that `most` is the largest number on average; long ones count
    by their bytes.
    """
    languages = Counter[str]()
    for path in files:
        languages[path.suffix] += max(count_file_lines(path), path.stat().st_size // LINE_BYTES)
    quota = most // max(1, len(languages))
    for path in files:
        share = min(1.0, quota / max(1, languages[path.suffix]))
        rng = np.random.default_rng(0)
        for block in in_blocks(read_lines(path)):
            yield from itertools.compress(block, rng.random(len(block)) < share)


def short_lines(line: str) -> Iterator[str]:
    """Yield a line in parts that SentencePiece reads, cut at blanks where there are any."""
    if len(line) > LINE_BYTES // 4 and len(line.encode()) > LINE_BYTES:
        yield from textwrap.wrap(line, LINE_BYTES // 4, break_on_hyphens=False)
    elif not is_blank(line):
        yield line


def train_model(files: Sequence[Path], how: SubwordOptions, text: TextOptions) -> bytes:
    """Train a SentencePiece model on the text of files LINES.LANGUAGE; return the content of the
    model file.
    """
    drawn = (
        normalise(line.replace(RESERVED, " "), text) for line in sample(files, how.max_sentences)
    )
    lines = itertools.chain.from_iterable(map(short_lines, drawn))
    first = next(lines, None)
    if first is None:
        raise InputError(
            f"{', '.join(map(str, files))}: no text; expected sentences to learn pieces from"
        )
    model = io.BytesIO()  # SentencePiece itself does not detect a full disk
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=itertools.chain([first], lines),
            model_writer=model,
            vocab_size=how.vocab_size,
            character_coverage=how.character_coverage,
            model_type=how.model_type,
            byte_fallback=how.byte_fallback,
            normalization_rule_name=how.normalisation,
            # so that text that contains them is never one piece
            control_symbols=[PAD, MASK],
            num_threads=2,
            minloglevel=2,
        )
    except InputError:
        raise
    except (RuntimeError, OSError, ValueError) as error:
        raise InputError(_in_words(str(error), how)) from None
    return model.getvalue()


def _in_words(error: str, how: SubwordOptions) -> str:
    """Rephrase an error of SentencePiece for users."""
    most = re.search(r"<= (\d+)", error)
    if most:
        return f"--vocab-size {how.vocab_size:,}: this text gives at most {int(most[1]):,} pieces; choose fewer"
    if "required_chars" in error:
        return (
            f"--vocab-size {how.vocab_size:,}: too small for the characters of this text; choose a larger size or a "
            "lower --character-coverage"
        )
    return f"SentencePiece could not be trained: {error.strip().splitlines()[-1]}"


def dictionary_pieces(model: Path) -> Iterator[str]:
    """Yield the pieces of a SentencePiece model in order, without the special symbols, which
    fairseq adds itself.
    """
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for index in range(processor.GetPieceSize()):
        if not (processor.IsControl(index) or processor.IsUnknown(index)):
            yield processor.IdToPiece(index)
