"""Make a data folder from aligned text with fairseq-preprocess, ready for `lxsr export` later.

    fairseq_preprocess.py --pairs en-fr --trainpref text/train --validpref text/valid \\
        --destdir data-bin PIECES

PIECES is one of --vocab-size 8000 (train one SentencePiece model for all languages),
--sentencepiece-model FILE (use an existing one), or --words (for text that is already split into
words or pieces, by Moses or subword-nmt). A pair en-fr is read from PREFIX.en and PREFIX.fr; if
there are several pairs, it is read from PREFIX.en-fr.en and PREFIX.en-fr.fr. All other options, for
example --workers or, with --words, --nwordssrc, are passed to fairseq-preprocess. `lxsr prepare`
also cleans the text, and is faster.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.blocks import in_blocks
from fairseq_lxsr.files.lines import count_file_lines, read_lines
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.options import FILE_NAME, at_least, file_path
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.subwords import dictionary_pieces, train_model
from fairseq_lxsr.text.tokenizer import (
    SENTENCEPIECE_FILE,
    TEXT_FILE,
    TEXT_VERSION,
    TextOptions,
    Tokenizer,
    normalise,
    read_dictionary,
)
from fairseq_lxsr.text.words import is_marked

SPLITS = ("train", "valid", "test")
# The files of a text by split, language pair and language.
Texts = dict[tuple[str, str, str], Path]


def read_options() -> tuple[argparse.Namespace, list[str]]:
    """Return the options of this script, and those for fairseq-preprocess."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--pairs", nargs="+", required=True, metavar="SRC-TGT")
    for split in SPLITS:
        parser.add_argument(
            f"--{split}pref", type=FILE_NAME, required=split != "test", metavar="PREFIX"
        )
    parser.add_argument(
        "--destdir",
        type=file_path,
        required=True,
        metavar="FOLDER",
        help="data folder; one that this script made before is replaced",
    )
    pieces = parser.add_mutually_exclusive_group(required=True)
    pieces.add_argument("--vocab-size", type=at_least(1), metavar="N")
    pieces.add_argument("--sentencepiece-model", type=file_path, metavar="FILE")
    pieces.add_argument("--words", action="store_true")
    parser.add_argument(
        "--lowercase", action="store_true", help="lower-case all text, here and when encoding"
    )
    return parser.parse_known_args()


def find_texts(args: argparse.Namespace) -> Texts:
    """Return the text of every split and pair.

    Raises:
        InputError: a file is missing, or the two sides of a text are not aligned.
    """
    texts: Texts = {}
    for pair in args.pairs:
        if pair.count("-") != 1:
            raise InputError(f"--pairs {pair}; expected SRC-TGT, for example en-fr")
        for split in SPLITS:
            prefix = vars(args)[f"{split}pref"]
            if not prefix:
                continue
            if len(args.pairs) > 1:
                prefix = f"{prefix}.{pair}"
            for language in pair.split("-"):
                texts[split, pair, language] = Path(f"{prefix}.{language}")
    missing = [str(path) for path in texts.values() if not path.is_file()]
    if missing:
        raise InputError(
            f"{', '.join(missing)}: no such file; expected text with one sentence per line"
        )
    check_alignment(texts)
    return texts


def check_alignment(texts: Texts) -> None:
    """Refuse texts whose two sides differ in the number of lines."""
    for split, pair in dict.fromkeys((split, pair) for split, pair, _ in texts):
        source, target = (texts[split, pair, language] for language in pair.split("-"))
        if count_file_lines(source) != count_file_lines(target):
            raise InputError(
                f"{source} and {target}: different numbers of lines; expected aligned text"
            )


def split_lines(
    path: Path, text_options: TextOptions, tokenizer: Tokenizer | None
) -> Iterator[str]:
    """Yield the lines of a text as word pieces with spaces between them.

    Without a tokenizer the text is only normalized.
    """
    for lines in in_blocks(read_lines(path)):
        pieces: Iterable[Sequence[str]]
        if tokenizer:
            pieces = tokenizer.pieces(lines)
        else:
            pieces = (normalise(line, text_options).split() for line in lines)
        for line in pieces:
            yield " ".join(line) + "\n"


def preprocess(*options: object) -> None:
    """Run fairseq-preprocess.

    Raises:
        InputError: it fails; with the last line of its errors.
    """
    command = [sys.executable, "-m", "fairseq_cli.preprocess", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["failed"]
        raise InputError(f"fairseq-preprocess: {errors[-1]}")


def make_model(args: argparse.Namespace, texts: Texts, options: TextOptions, model: Path) -> None:
    """Copy or train the SentencePiece model, unless the text is split into words."""
    if args.sentencepiece_model:
        shutil.copyfile(args.sentencepiece_model, model)
    elif args.vocab_size:
        train_texts = [path for (split, _, _), path in texts.items() if split == "train"]
        subwords = SubwordOptions(args.vocab_size, args.lowercase)
        model.write_bytes(train_model(train_texts, subwords, options))


def make_word_dictionary(scratch: Path, options: list[str]) -> Path:
    """Make one dictionary of the words of all languages.

    Args:
        scratch: the folder of the texts train.SRC-TGT.LANGUAGE.
        options: options for fairseq-preprocess.

    Raises:
        InputError: the text consists of SentencePiece pieces.
    """
    with open(scratch / "all.all", "wb") as stream:
        for path in sorted(scratch.glob("train.*")):
            stream.write(path.read_bytes())
    text = ("--only-source", "--source-lang", "all", "--trainpref", scratch / "all")
    preprocess(*text, "--dict-only", "--destdir", scratch, *options)
    dictionary = scratch / "dict.all.txt"
    if is_marked(read_dictionary(dictionary)):
        raise InputError(
            "--words: the text consists of SentencePiece pieces; give the text before it was "
            "split, "
            "and --sentencepiece-model"
        )
    return dictionary


def make_piece_dictionary(model: Path, dictionary: Path) -> Path:
    """Write the pieces of a SentencePiece model as the dictionary of all languages."""
    entries = "".join(f"{piece} 1\n" for piece in dictionary_pieces(model))
    dictionary.write_text(entries, encoding="utf-8")
    return dictionary


def build(
    args: argparse.Namespace, options: list[str], texts: Texts, work: Path, scratch: Path
) -> None:
    """Write the data folder.

    Args:
        args: the options of this script.
        options: options for fairseq-preprocess.
        texts: the texts.
        work: the data folder.
        scratch: a temporary folder, for the texts in word pieces.
    """
    text_options = TextOptions(args.lowercase, version=TEXT_VERSION)
    model = work / SENTENCEPIECE_FILE
    make_model(args, texts, text_options, model)
    (work / TEXT_FILE).write_text(text_options.dumps(), encoding="utf-8")
    tokenizer = None if args.words else Tokenizer(model, text_options)
    for (split, pair, language), path in texts.items():
        with open(scratch / f"{split}.{pair}.{language}", "w", encoding="utf-8") as stream:
            stream.writelines(split_lines(path, text_options, tokenizer))
    if args.words:
        dictionary = make_word_dictionary(scratch, options)
    else:
        dictionary = make_piece_dictionary(model, scratch / "dict.all.txt")
    for pair in args.pairs:
        source, target = pair.split("-")
        words: list[object] = ["--source-lang", source, "--target-lang", target]
        words += ["--srcdict", dictionary, "--joined-dictionary"]
        for split in SPLITS:
            if (split, pair, source) in texts:
                words += [f"--{split}pref", scratch / f"{split}.{pair}"]
        preprocess(*words, "--destdir", work, *options)


def main() -> None:
    args, options = read_options()
    with exit_on_input_error("fairseq_preprocess.py"):
        texts = find_texts(args)
        with (
            atomic_folder(args.destdir, TEXT_FILE) as work,
            tempfile.TemporaryDirectory() as scratch,
        ):
            build(args, options, texts, work, Path(scratch))
    pairs = ", ".join(args.pairs)
    print(
        f"{args.destdir}: fairseq data for {pairs}; train on it with fairseq-train or `lxsr train`"
    )


if __name__ == "__main__":
    main()
