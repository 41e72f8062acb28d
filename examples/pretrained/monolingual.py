"""Questions and sentences of single languages: for the word pieces, the teacher, and prune.py.

python examples/pretrained/monolingual.py --questions topics --sentences server/data \
    --exclude FILE ... --output DIR

The questions are the training questions of MIRACL and Mr. TyDi, which people asked about articles
of Wikipedia, from the repository castorini/anserini-tools. The sentences were collected for Common
Voice, from the repository common-voice/common-voice, without its text of Wikipedia. The files
DIR/questions/LANG.txt and DIR/monolingual/LANG.txt are for pieces.py and teacher.py, and prune.py
counts pieces in monolingual and in the sentences of other languages, DIR/everyday/LANG.txt. Long
and repeated lines are omitted, as are sentences of the evaluation text FILE.
"""

import argparse
import re
from collections.abc import Container, Mapping, Sequence
from pathlib import Path

from fairseq_lxsr.errors import InputError, exit_on_input_error, shown
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.files.write import atomic_write
from fairseq_lxsr.preparation.clean import comparable

MIRACL = "topics.miracl-v1.0-{}-train.tsv"
MR_TYDI = "topics.mrtydi-v1.1-{}.train.txt.gz"
QUESTIONS = {language: [MIRACL, MR_TYDI] for language in ("ar", "en", "ja", "ko", "ru", "th")}
QUESTIONS |= {language: [MIRACL] for language in ("es", "fr", "zh")}
COLLECTED = "{}/sentence-collector.txt"
SENTENCES = {language: [COLLECTED] for language in ("de", "en", "es", "ja", "nl", "pl", "pt", "tr")}
SENTENCES |= {
    "it": [COLLECTED, "it/frasi.txt"],
    "zh": [COLLECTED.format("zh-CN"), COLLECTED.format("zh-TW")],
}
# Languages that the teacher does not read, and Arabic.
EVERYDAY = {language: [COLLECTED] for language in ("ar", "ca", "cs", "el", "fa", "fi", "hi", "hu")}
EVERYDAY |= {language: [COLLECTED] for language in ("id", "lv", "ro", "sk", "sr", "uk", "vi")}
EVERYDAY["et"] = ["{}/est-common-voice-10k.txt"]
# Folders of the sentences, and the files of their languages.
FOLDERS = {"monolingual": SENTENCES, "everyday": EVERYDAY}
CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# Exclusive maximum length of a line in characters.
LONGEST = 200


def questions_in(path: Path) -> list[str]:
    """Read questions, each of which follows its number and a tab."""
    questions = []
    for number, line in enumerate(read_lines(path), start=1):
        _, tab, question = line.partition("\t")
        if not tab:
            raise InputError(
                f"{path}, line {number}: {shown(line)}; expected NUMBER, tab, QUESTION"
            )
        questions.append(question)
    return questions


def write_lines(path: Path, lines: Sequence[str], excluded: Container[str]) -> None:
    """Write each sentence once, in its last spelling.

    Empty sentences, long ones and those with control characters are omitted.

    Args:
        path: the output file.
        lines: the sentences.
        excluded: evaluation text, processed by `comparable`, which is also omitted.
    """
    unique: dict[str, str] = {}
    for line in lines:
        if not CONTROLS.search(line):
            unique[comparable(line)] = " ".join(line.split())
    sentences = []
    for key, sentence in unique.items():
        if key and len(sentence) < LONGEST and key not in excluded:
            sentences.append(sentence)
    with atomic_write(path) as stream:
        stream.writelines(f"{sentence}\n" for sentence in sentences)
    print(f"{path}: {len(sentences):,} lines")


def files_in(folder: Path, names: Mapping[str, Sequence[str]]) -> dict[str, list[Path]]:
    """Return the files of each language, after checking that they exist."""
    files = {}
    for language, patterns in names.items():
        files[language] = [folder / pattern.format(language) for pattern in patterns]
        for path in files[language]:
            if not path.is_file():
                raise InputError(f"{path}: no such file; see --help")
    return files


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--questions",
        type=Path,
        required=True,
        metavar="DIR",
        help="folder topics of anserini-tools",
    )
    parser.add_argument(
        "--sentences",
        type=Path,
        required=True,
        metavar="DATA",
        help="folder server/data of common-voice",
    )
    parser.add_argument(
        "--exclude", type=Path, nargs="+", required=True, metavar="FILE", help="text for evaluation"
    )
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write")
    args = parser.parse_args()
    with exit_on_input_error("monolingual.py"):
        questions = files_in(args.questions, QUESTIONS)
        sentences = {name: files_in(args.sentences, files) for name, files in FOLDERS.items()}
        excluded = set()
        for file in args.exclude:
            excluded.update(map(comparable, read_lines(file, is_sentence=False)))
        for language, paths in questions.items():
            lines = [question for path in paths for question in questions_in(path)]
            write_lines(args.output / "questions" / f"{language}.txt", lines, excluded)
        for folder, files in sentences.items():
            for language, paths in files.items():
                lines = [line for path in paths for line in read_lines(path)]
                write_lines(args.output / folder / f"{language}.txt", lines, excluded)


if __name__ == "__main__":
    main()
