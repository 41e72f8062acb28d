"""P@1 of text as people have it: other letters, without marks, in mark-up, with typing errors.

python -m benchmarks.quality.spellings --data DIR --model lxsr-static \
    --output benchmarks/quality/results/spellings.json

DIR has eval/ with the files of `quality.pretrained`. A spelling changes some sentences of a set.
These sentences, as they are and as they are spelled, search among all translations, and the
translations search them among all sentences. P@1 is the mean of both directions, in percent.
The table of docs/preparing.md is written, too. Romanised text needs `pip install anyascii`.
"""

import random
import re
import unicodedata
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np

from benchmarks.machine import machine
from benchmarks.quality.languages import FILES
from benchmarks.quality.pretrained import TATOEBA
from benchmarks.quality.sets import read_text
from benchmarks.script import command_line, write_results
from fairseq_lxsr import SentenceEncoder

Change = Callable[[str], str]
PAGE = Path(__file__).parents[2] / "docs" / "preparing.md"
# The table of the page stands between these comments.
BEGIN = "<!-- spellings: python -m benchmarks.quality.spellings writes this table -->\n"
END = "<!-- end of spellings -->"
# Spellings whose sentences are read as those of the usual spelling are one row of the table.
SAME = "mark-up, and other letters, digits, capitals and signs"
# A set in which a spelling changes fewer sentences says little.
LEAST_SENTENCES = 20
VIETNAMESE_TONES = "\u0300\u0301\u0303\u0309\u0323"


def letters(old: str, new: str) -> Change:
    """Return a change of each letter of a string to the letter in the same place of another."""
    table = str.maketrans(dict(zip(old, new, strict=True)))
    return lambda text: text.translate(table)


def replaced(rules: dict[str, str]) -> Change:
    """Return a change of letters into strings."""
    table = str.maketrans(rules)
    return lambda text: text.translate(table)


def digits(zero: str) -> Change:
    """Return a change of ASCII digits to those of a script, given its zero."""
    return letters("0123456789", "".join(chr(ord(zero) + number) for number in range(10)))


def without_marks(*names: str) -> Change:
    """Return a change that removes combining marks, given their Unicode names."""
    marks = {unicodedata.lookup(name) for name in names}

    def change(text: str) -> str:
        decomposed = unicodedata.normalize("NFD", text)
        stripped = "".join(letter for letter in decomposed if letter not in marks)
        return unicodedata.normalize("NFC", stripped)

    return change


def greek_capitals(text: str) -> str:
    return without_marks("COMBINING ACUTE ACCENT")(text).upper()


def turkish_capitals(text: str) -> str:
    return text.replace("i", "İ").replace("ı", "I").upper()


def full_width(text: str) -> str:
    """Return text whose ASCII letters and digits have the width of Chinese characters."""
    return re.sub("[0-9A-Za-z]", lambda match: chr(ord(match[0]) + 0xFEE0), text)


def half_width(text: str) -> str:
    """Return text whose katakana have half the width of other Japanese letters."""
    return "".join(HALF_WIDTH.get(letter, letter) for letter in text)


def half_width_katakana() -> dict[str, str]:
    """Return the half-width form of each katakana letter."""
    forms = {}
    for code in range(0xFF65, 0xFF9E):
        for mark in ("", "\uff9e", "\uff9f"):
            form = chr(code) + mark
            letter = unicodedata.normalize("NFKC", form)
            if len(letter) == 1:
                forms[letter] = form
    return forms


HALF_WIDTH = half_width_katakana()


def tone_on_the_other_vowel(text: str) -> str:
    """Return Vietnamese text whose tones stand on the first vowel, as in older spelling."""
    for first, second in ("oa", "oe", "uy"):
        for tone in VIETNAMESE_TONES:
            new = unicodedata.normalize("NFC", first + second + tone)
            old = unicodedata.normalize("NFC", first + tone + second)
            text = text.replace(new, old)
    return text


# Letters whose marks Unicode does not separate.
STROKES = str.maketrans("łŁđĐøØı", "lLdDoOi")


def plain_letters(text: str) -> str:
    """Return text without the marks of its letters, as many people type it."""
    letters_and_marks = unicodedata.normalize("NFD", text)
    unmarked = [letter for letter in letters_and_marks if not unicodedata.combining(letter)]
    return "".join(unmarked).translate(STROKES)


def romanised(text: str) -> str:
    """Return text in ASCII letters."""
    from anyascii import anyascii

    return anyascii(text)


def typing_errors(text: str) -> str:
    """Return text in which two neighbouring letters of every second longer word are exchanged."""
    rng = random.Random(text)

    def change(match: re.Match[str]) -> str:
        word = match[0]
        if rng.random() < 0.5:
            return word
        place = rng.randrange(1, len(word) - 2)
        return word[:place] + word[place + 1] + word[place] + word[place + 2 :]

    return re.sub(r"[^\W\d_]{5,}", change, text)


def wrapped(before: str, after: str) -> Change:
    """Return a change that adds text before and after a sentence."""
    return lambda text: before + text + after


def footnotes(text: str) -> str:
    """Return text with the mark of a footnote before each full stop and comma."""
    return re.sub(r"([.,])", r"[1]\1", text)


def spaced_letters(text: str) -> str:
    """Return Chinese text with a space between its letters."""
    return re.sub(r"([\u4e00-\u9fff])(?=[\u4e00-\u9fff])", r"\1 ", text)


def zero_width_spaces(text: str) -> str:
    """Return Thai text with a zero-width space before each vowel that starts a syllable."""
    return re.sub("(?<=[\u0e01-\u0e2e])(?=[\u0e40-\u0e44])", "\u200b", text)


class Spelling(NamedTuple):
    """A way to spell text.

    Attributes:
        name: what is spelled otherwise.
        languages: the languages whose text is spelled so.
        change: spells a sentence.
    """

    name: str
    languages: Sequence[str]
    change: Change


MARKED = (
    *("vi", "hu", "cs", "sk", "tr", "hr", "pl", "ro", "sv", "pt", "fr", "de", "es", "ca", "da"),
    *("fi", "et", "lv", "lt", "is", "nb", "sl", "it", "nl"),
)
WITH_MARKUP = ("fr", "de", "ru", "ja")
SPELLINGS = (
    Spelling("letters without marks", MARKED, plain_letters),
    Spelling(
        "ae, oe, ue, ss for ä, ö, ü, ß",
        ["de"],
        replaced({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "Ä": "Ae", "Ö": "Oe", "Ü": "Ue"}),
    ),
    Spelling("romanised", ["ru", "bg", "uk", "sr", "el", "hi", "ar", "he", "ko"], romanised),
    Spelling("typing errors", ["de", "fr", "es", "pl", "fi", "ru", "tr"], typing_errors),
    Spelling("bold (Markdown)", WITH_MARKUP, wrapped("**", "**")),
    Spelling("heading (Markdown)", WITH_MARKUP, wrapped("## ", "")),
    Spelling("HTML tags", WITH_MARKUP, wrapped('<p class="text">', "</p>")),
    Spelling("footnotes", WITH_MARKUP, footnotes),
    Spelling("underscores for spaces", ["fr", "de", "ru"], lambda text: text.replace(" ", "_")),
    Spelling("URL at the end", WITH_MARKUP, wrapped("", " https://t.co/AbC123xyz")),
    Spelling("spaces between Chinese letters", ["zh"], spaced_letters),
    Spelling("zero-width spaces", ["th"], zero_width_spaces),
    Spelling("Arabic digits", ["ar"], digits("\u0660")),
    Spelling("Persian digits", ["fa"], digits("\u06f0")),
    Spelling("Devanagari digits", ["hi"], digits("\u0966")),
    Spelling("Thai digits", ["th"], digits("\u0e50")),
    Spelling("Arabic yeh and kaf", ["fa"], letters("یک", "يك")),
    Spelling("alef without hamza", ["ar"], letters("أإآ", "ااا")),
    Spelling("heh for teh marbuta", ["ar"], letters("ة", "ه")),
    Spelling("alef maksura for yeh at the end", ["ar"], lambda text: re.sub(r"ي\b", "ى", text)),
    Spelling("Greek capitals", ["el"], greek_capitals),
    Spelling("Turkish capitals", ["tr"], turkish_capitals),
    Spelling("capitals", ["de", "fr", "ru", "uk", "bg", "vi"], str.upper),
    Spelling("sara e twice for sara ae", ["th"], lambda text: text.replace("แ", "เเ")),
    Spelling(
        "nikhahit before the tone",
        ["th"],
        lambda text: re.sub("([\u0e48-\u0e4b])\u0e33", "\u0e4d\\1\u0e32", text),
    ),
    Spelling("cedilla for comma below", ["ro"], letters("șțȘȚ", "şţŞŢ")),
    Spelling("ss for ß", ["de"], replaced({"ß": "ss"})),
    Spelling("oe for œ", ["fr"], replaced({"œ": "oe", "Œ": "Oe"})),
    Spelling("ё without dots", ["ru"], letters("ёЁ", "еЕ")),
    Spelling("minus sign for hyphen", ["de", "fr"], letters("-", "\u2212")),
    Spelling("backtick for apostrophe", ["fr", "it", "uk"], letters("'\u2019", "``")),
    Spelling("acute accent for apostrophe", ["fr", "it", "uk"], letters("'\u2019", "\xb4\xb4")),
    Spelling("apostrophe as a letter", ["uk"], letters("'\u2019", "\u02bc\u02bc")),
    Spelling("straight for curly quotation marks", ["de", "ru", "fr"], letters("„“”«»", '"""""')),
    Spelling("geresh for apostrophe", ["he"], letters("'\"", "\u05f3\u05f4")),
    Spelling("without nukta", ["hi"], without_marks("DEVANAGARI SIGN NUKTA")),
    Spelling("anusvara for chandrabindu", ["hi"], letters("ँ", "ं")),
    Spelling("tone on the first vowel", ["vi"], tone_on_the_other_vowel),
    Spelling("half-width katakana", ["ja"], half_width),
    Spelling("full-width Latin letters and digits", ["ja", "zh", "ko"], full_width),
    Spelling(
        "letters and marks apart (NFD)",
        ["ko", "vi", "fr", "cs"],
        partial(unicodedata.normalize, "NFD"),
    ),
)


def measure(encoder: SentenceEncoder, spelling: Spelling, data: Path) -> list[dict]:
    """Return the results of a spelling in each of its languages and in each set."""
    rows = []
    for language in spelling.languages:
        for name, (template, english) in FILES.items():
            code = TATOEBA[language] if english == "eng" else language
            file = template.format(pair=f"{code}-{english}", lang="{}")
            paths = [data / "eval" / f"{file.format(side)}.txt.gz" for side in (code, english)]
            if not all(path.is_file() for path in paths):
                continue
            texts, translations = [read_text(path) for path in paths]
            row = compare(encoder, spelling.change, texts, translations)
            if row["sentences"] >= LEAST_SENTENCES:
                labels = {"spelling": spelling.name, "language": language, "set": name}
                rows.append(labels | row)
    return rows


def compare(
    encoder: SentenceEncoder, change: Change, texts: list[str], translations: list[str]
) -> dict[str, float]:
    """Return P@1 of the sentences that a spelling changes, as they are and as they are spelled."""
    spelled = [change(text) for text in texts]
    changed = [row for row, text in enumerate(texts) if spelled[row] != text]
    if not changed:
        return {"sentences": 0}
    english = encoder.encode(translations, normalize_embeddings=True)
    vectors = encoder.encode(texts, normalize_embeddings=True)
    plain = precision(vectors, english, changed)
    vectors[changed] = encoder.encode([spelled[row] for row in changed], normalize_embeddings=True)
    spelled_precision = precision(vectors, english, changed)
    return {"sentences": len(changed), "plain": plain, "spelled": spelled_precision}


def precision(vectors: np.ndarray, translations: np.ndarray, rows: list[int]) -> float:
    """Return P@1 of some sentences, the mean of both directions, in percent."""
    directions = []
    for queries, candidates in ((vectors, translations), (translations, vectors)):
        nearest = (queries[rows] @ candidates.T).argmax(axis=1)
        directions.append(100 * float(np.mean(nearest == rows)))
    return round(fmean(directions), 2)


def table(rows: Sequence[dict]) -> str:
    """Return a table of the means of P@1 over the sets of each spelling.

    The spellings that change no result are one row.
    """
    groups: dict[str, list[dict]] = {}
    for row in rows:
        groups.setdefault(row["spelling"], []).append(row)
    same: list[dict] = []
    lines = ["| text | languages | sets | P@1 of the usual text | P@1 |", "|---|---|---|---|---|"]
    for name, group in groups.items():
        if all(row["plain"] == row["spelled"] for row in group):
            same += group
        else:
            lines.append(table_row(name, group))
    lines.append(table_row(SAME, same))
    return "\n".join(lines) + "\n"


def table_row(name: str, rows: Sequence[dict]) -> str:
    """Return a row of the table."""
    languages = {row["language"] for row in rows}
    means = [f"{fmean(row[key] for row in rows):.1f}" for key in ("plain", "spelled")]
    return f"| {name} | {len(languages)} | {len(rows)} | {' | '.join(means)} |"


def write_page(rows: Sequence[dict]) -> None:
    """Write the table into the page, between its comments."""
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{table(rows)}\n{END}{after}", encoding="utf-8")


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with eval/")
    parser.add_argument("--model", required=True, help="model folder or name")
    args = parser.parse_args()
    encoder = SentenceEncoder.from_pretrained(args.model)
    rows = []
    print("| spelling | language | set | sentences | plain | spelled |")
    print("|---|---|---|---|---|---|")
    for spelling in SPELLINGS:
        for row in measure(encoder, spelling, args.data):
            print("|", " | ".join(map(str, row.values())), "|", flush=True)
            rows.append(row)
    results = {"model": args.model, "fingerprint": encoder.fingerprint, "machine": machine()}
    write_results(args.output, results | {"P@1": rows})
    write_page(rows)


if __name__ == "__main__":
    main()
