"""From aligned text to a data folder by fairseq's own fairseq-preprocess, with what `lxsr export`
needs later.

    fairseq_preprocess.py --pairs en-fr --trainpref text/train --validpref text/valid --destdir data-bin HOW

HOW is --vocab-size 8000 (trains one SentencePiece model for all languages), --sentencepiece-model
FILE (takes one), or --words (for text in words or pieces already: Moses, subword-nmt). A pair en-fr
is read from PREFIX.en and PREFIX.fr, several pairs from PREFIX.en-fr.en and so on. Other options,
for example --testpref, --workers or, with --words, --nwordssrc, are those of fairseq-preprocess.
`lxsr prepare` cleans the text too, and is faster.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import count_file_lines, read_lines
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.options import FILE_NAME, at_least, file_path
from fairseq_lxsr.preparation.config import SubwordOptions
from fairseq_lxsr.preparation.subwords import dictionary_pieces, train_model
from fairseq_lxsr.preparation.workers import in_blocks
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
Texts = dict[tuple[str, str, str], Path]  # by split, pair and language


def read_options() -> tuple[argparse.Namespace, list[str]]:
    """Return our options, and those for fairseq-preprocess."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how, allow_abbrev=False)
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
        help="one of before is replaced",
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
    """Find the text of every split and pair, and refuse what is missing or not aligned, all of it
    at once.
    """
    texts: Texts = {}
    for pair in args.pairs:
        if pair.count("-") != 1:
            raise InputError(f"--pairs {pair}; expected SRC-TGT, for example en-fr")
        for split in SPLITS:
            prefix = vars(args)[f"{split}pref"]
            prefix = f"{prefix}.{pair}" if prefix and len(args.pairs) > 1 else prefix
            texts |= {
                (split, pair, language): Path(f"{prefix}.{language}")
                for language in pair.split("-")
                if prefix
            }
    missing = [str(path) for path in texts.values() if not path.is_file()]
    if missing:
        raise InputError(
            f"{', '.join(missing)}: no such file; expected text of one sentence a line"
        )
    for (split, pair, language), path in texts.items():
        other = texts[split, pair, next(name for name in pair.split("-") if name != language)]
        if count_file_lines(path) != count_file_lines(other):
            raise InputError(
                f"{path} and {other}: not of the same number of lines; expected aligned text"
            )
    return texts


def split(path: Path, text: TextOptions, tokenizer: Tokenizer | None) -> Iterator[str]:
    """Yield the lines of a text in pieces, blanks between them."""
    for lines in in_blocks(read_lines(path)):
        pieces = (
            tokenizer.pieces(lines)
            if tokenizer
            else (normalise(line, text).split() for line in lines)
        )
        yield from (" ".join(line) + "\n" for line in pieces)


def preprocess(*options: object) -> None:
    """Run fairseq-preprocess."""
    command = [sys.executable, "-m", "fairseq_cli.preprocess", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise InputError(
            f"fairseq-preprocess: {(done.stderr.strip().splitlines() or ['failed'])[-1]}"
        )


def build(
    args: argparse.Namespace, others: list[str], texts: Texts, work: Path, scratch: Path
) -> None:
    """Write pieces, dictionary and binary data."""
    text, model = TextOptions(args.lowercase, version=TEXT_VERSION), work / SENTENCEPIECE_FILE
    trained_on = [path for (split, _, _), path in texts.items() if split == "train"]
    if args.sentencepiece_model:
        shutil.copyfile(args.sentencepiece_model, model)
    elif args.vocab_size:
        model.write_bytes(
            train_model(trained_on, SubwordOptions(args.vocab_size, args.lowercase), text)
        )
    (work / TEXT_FILE).write_text(text.dumps(), encoding="utf-8")
    tokenizer = None if args.words else Tokenizer(model, text)
    for (name, pair, language), path in texts.items():
        with open(scratch / f"{name}.{pair}.{language}", "w", encoding="utf-8") as stream:
            stream.writelines(split(path, text, tokenizer))
    dictionary = scratch / "dict.all.txt"
    if args.words:  # one for all languages
        with open(scratch / "all.all", "wb") as stream:
            for path in sorted(scratch.glob("train.*")):
                stream.write(path.read_bytes())
        one = (
            "--only-source",
            "--dict-only",
            "--source-lang",
            "all",
            "--trainpref",
            scratch / "all",
        )
        preprocess(*one, "--destdir", scratch, *others)
        if is_marked(read_dictionary(dictionary)):
            raise InputError(
                "--words: the text has pieces of SentencePiece; give whole text and --sentencepiece-model"
            )
    else:
        dictionary.write_text(
            "".join(f"{piece} 1\n" for piece in dictionary_pieces(model)), encoding="utf-8"
        )
    for pair in args.pairs:
        source, target = pair.split("-")
        prefixes = [
            (f"--{name}pref", scratch / f"{name}.{pair}")
            for name in SPLITS
            if (name, pair, source) in texts
        ]
        languages = (
            "--source-lang",
            source,
            "--target-lang",
            target,
            "--srcdict",
            dictionary,
            "--joined-dictionary",
        )
        preprocess(*languages, *chain.from_iterable(prefixes), "--destdir", work, *others)


def main() -> None:
    args, others = read_options()
    with exit_on_input_error("fairseq_preprocess.py"):
        texts = find_texts(args)
        with (
            atomic_folder(args.destdir, TEXT_FILE) as work,
            tempfile.TemporaryDirectory() as scratch,
        ):
            build(args, others, texts, work, Path(scratch))
    print(
        f"{args.destdir}: fairseq data of {', '.join(args.pairs)}; train on it with fairseq-train or `lxsr train`"
    )


if __name__ == "__main__":
    main()
