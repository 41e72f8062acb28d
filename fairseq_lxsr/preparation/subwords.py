"""Trains one SentencePiece model, and builds one dictionary for all languages."""

import io
import itertools
import re
import tempfile
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import sentencepiece

from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.blocks import in_blocks
from fairseq_lxsr.files.lines import count_file_lines, is_blank, read_lines
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.stages import run_stage
from fairseq_lxsr.preparation.workers import call_in_subprocess
from fairseq_lxsr.text.chinese import simplified_characters
from fairseq_lxsr.text.folding import FOLDED, write_folded_rules
from fairseq_lxsr.text.sentencepiece_model import with_rule_name
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

# Maximum line length in bytes. SentencePiece silently skips longer lines.
LINE_BYTES = 4192
# Maps the minimum number of training pairs to the default vocabulary size.
VOCAB_SIZES = {0: 8_000, 20_000: 16_000, 500_000: 32_000}
# SentencePiece silently skips lines with this character, which marks unknown characters.
RESERVED = "\u2585"
# Matches the error of SentencePiece that states the largest possible vocabulary size.
TOO_MANY_PIECES = re.compile(r"<= (\d+)")


def train_subwords(folder: Path, corpora: Sequence[Path], options: SubwordOptions) -> dict:
    """Run the subwords stage: train SentencePiece, and write its model and the dictionary.

    Args:
        folder: output subword folder.
        corpora: corpus folders whose training text is used.
        options: word piece options.

    Returns:
        The report: dictionary size.

    Raises:
        InputError: if there is no text, or SentencePiece cannot be trained on it.
    """
    files = [path for corpus in corpora for path in sorted(corpus.glob("train.*"))]
    text_options = text_options_of(options)
    is_default_size = options.vocab_size is None
    num_pairs = count_training_pairs(corpora)
    if is_default_size:
        options = replace(options, vocab_size=default_vocab_size(num_pairs))

    def build(work: Path) -> dict:
        model = call_in_subprocess(train_model, files, options, text_options, is_default_size)
        (work / SENTENCEPIECE_FILE).write_bytes(model)
        pieces = list(dictionary_pieces(work / SENTENCEPIECE_FILE))
        entries = "".join(f"{piece} 1\n" for piece in pieces)
        (work / DICTIONARY_FILE).write_text(entries, encoding="utf-8")
        (work / TEXT_FILE).write_text(text_options.dumps(), encoding="utf-8")
        # The special symbols and <mask> are not stored in the file.
        return {"dictionary": len(pieces) + len(SPECIAL) + 1}

    report = run_stage(folder, _stage_options(options, text_options), files, build)
    details = ""
    if options.lowercase:
        details += ", lower case"
    if options.simplify_chinese:
        details += ", simplified Chinese"
    if is_default_size:
        details += f", the default for {num_pairs:,} pairs (--vocab-size N for another size)"
    size = report["dictionary"]
    print(f"{folder}: SentencePiece {options.model_type}, dictionary of {size:,} entries{details}")
    return report


def text_options_of(options: SubwordOptions) -> TextOptions:
    """Return how a model with these options, without `from_model`, reads text."""
    characters = simplified_characters() if options.simplify_chinese else ""
    return TextOptions(options.lowercase, options.split_han, TEXT_VERSION, characters)


def count_training_pairs(corpora: Sequence[Path]) -> int:
    """Count the training pairs of all corpora."""
    count = 0
    for corpus in corpora:
        # Both sides have the same number of lines.
        for path in sorted(corpus.glob("train.*"))[:1]:
            count += count_file_lines(path)
    return count


def default_vocab_size(num_pairs: int) -> int:
    """Return the default vocabulary size for a number of training pairs.

    Source: docs/train-your-pairs.md.
    """
    return VOCAB_SIZES[max(least for least in VOCAB_SIZES if least <= num_pairs)]


def _stage_options(options: SubwordOptions, text_options: TextOptions) -> dict:
    """Return the options that the result depends on: changing them runs the stage again."""
    values = asdict(options) | text_options.record()
    values["sentencepiece"] = sentencepiece.__version__
    for name in ("from_model", "new_pieces"):
        del values[name]
    return values


def sample(files: Sequence[Path], limit: int) -> Iterator[str]:
    """Sample lines from files, with an equal number of lines per language.

    The sample is deterministic. All lines of a language are drawn independently, with the same
    probability. Text with long lines counts as if it had one line per `LINE_BYTES` bytes.

    Args:
        files: text files LINES.LANGUAGE.
        limit: maximum expected number of lines.
    """
    sizes = Counter[str]()
    for path in files:
        sizes[path.suffix] += max(count_file_lines(path), path.stat().st_size // LINE_BYTES)
    quota = limit // max(1, len(sizes))
    for path in files:
        share = min(1.0, quota / max(1, sizes[path.suffix]))
        rng = np.random.default_rng(0)
        for block in in_blocks(read_lines(path)):
            yield from itertools.compress(block, rng.random(len(block)) < share)


def short_lines(line: str) -> Iterator[str]:
    """Split a line into parts short enough for SentencePiece, at spaces if possible."""
    if len(line) > LINE_BYTES // 4 and len(line.encode()) > LINE_BYTES:
        yield from textwrap.wrap(line, LINE_BYTES // 4, break_on_hyphens=False)
    elif not is_blank(line):
        yield line


def train_model(
    files: Sequence[Path],
    options: SubwordOptions,
    text_options: TextOptions,
    accept_fewer: bool = False,
) -> bytes:
    """Train a SentencePiece model.

    Args:
        files: text files LINES.LANGUAGE.
        options: word piece options.
        text_options: text normalization options.
        accept_fewer: whether to learn fewer pieces if the text does not yield `vocab_size` pieces.

    Returns:
        Content of the model file.

    Raises:
        InputError: if there is no text, or SentencePiece cannot be trained on it.
    """
    normalized = (
        normalise(line.replace(RESERVED, " "), text_options)
        for line in sample(files, options.max_sentences)
    )
    lines = itertools.chain.from_iterable(map(short_lines, normalized))
    first = next(lines, None)
    if first is None:
        raise InputError(
            f"{', '.join(map(str, files))}: no text to learn word pieces from; check the "
            "training text"
        )
    try:
        return _train(itertools.chain([first], lines), options)
    except InputError:
        raise
    except (RuntimeError, OSError, ValueError) as error:
        limit = TOO_MANY_PIECES.search(str(error))
        if limit and accept_fewer:
            return train_model(files, replace(options, vocab_size=int(limit[1])), text_options)
        raise InputError(_explain(str(error), options)) from None


def _train(lines: Iterator[str], options: SubwordOptions) -> bytes:
    """Train a SentencePiece model on lines of text, and return the content of the model file."""
    # Return the model instead of letting SentencePiece write it, which does not detect a full disk.
    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        rule = options.normalisation
        rule_file = ""
        if rule == FOLDED:
            rule = ""
            rule_file = str(write_folded_rules(Path(folder)))
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=lines,
            model_writer=model,
            vocab_size=options.vocab_size,
            character_coverage=options.character_coverage,
            model_type=options.model_type,
            byte_fallback=options.byte_fallback,
            # Control symbols are never produced from text, even if the text contains their names.
            control_symbols=[PAD, MASK],
            num_threads=2,
            normalization_rule_name=rule,
            normalization_rule_tsv=rule_file,
            minloglevel=2,
        )
    if options.normalisation == FOLDED:
        return with_rule_name(model.getvalue(), FOLDED.encode())
    return model.getvalue()


def _explain(error: str, options: SubwordOptions) -> str:
    """Return a message for users that explains a SentencePiece error."""
    size = f"--vocab-size {options.vocab_size:,}"
    limit = TOO_MANY_PIECES.search(error)
    if limit:
        return f"{size}: this text yields at most {int(limit[1]):,} pieces; choose a smaller size"
    if "required_chars" in error:
        return (
            f"{size}: too small for the characters of this text; choose a larger size or a lower "
            "--character-coverage"
        )
    return f"SentencePiece training failed: {error.strip().splitlines()[-1]}"


def dictionary_pieces(model: Path) -> Iterator[str]:
    """Yield the pieces of a SentencePiece model for the dictionary, in model order.

    The special symbols are omitted, because fairseq adds them itself.
    """
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    for index in range(processor.GetPieceSize()):
        if not (processor.IsControl(index) or processor.IsUnknown(index)):
            yield processor.IdToPiece(index)
