"""P@1 of codes in lists: part numbers, error codes, dates, prices, hexadecimal numbers, names.

python -m benchmarks.quality.codes --model lxsr-static \
    --output benchmarks/quality/results/codes.json

Each list has lines with a code that no other line has. The codes search their list, and a list of
lines of all kinds, in an index of `lxsr index --plain` and in one without options. The lists are
generated and are the same every time.
"""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.script import command_line, write_results
from fairseq_lxsr.embeddings import Encoder, load
from fairseq_lxsr.search import CorpusIndex

# Lines and their codes.
Lines = list[tuple[str, str]]
WORDS = {
    "thing": "bolt cable lamp hinge valve pump filter battery switch bracket hose motor sensor",
    "city": "Berlin Oslo Porto Lyon Turin Ghent Vilnius Zagreb Sofia Athens Cork Bergen Brno",
    "name": "Olga Tomas Irene Pavel Maria Jonas Elena Viktor Anna Luis Greta Hugo Nora",
}
SYLLABLES = "ba ko ri stu men dal vor ne li gar sch tz ow ski berg holm"
# Lists by name: code and line; {thing}, {city} and {name} are drawn, and so is each letter of a
# code except E: A a capital, N a digit from 1 to 9, n a digit, x a hexadecimal digit.
LISTS = {
    "part numbers": ("AA-Nn-Nnn", "Part no. {code}: steel {thing}, in stock in {city}"),
    "error codes": ("E-Nnnn", "{code} The {thing} does not answer; restart the {thing}."),
    "dates": ("{date}", "Meeting on {code} in {city} about the {thing} contract"),
    "prices": ("Nn.nn", "{thing}: {code} EUR with delivery to {city}"),
    "hexadecimal": ("xxxxxxx", "commit {code} mends the {thing} driver for {city}"),
    "names": ("{surname}", "{name} {code}, {thing} department, {city}"),
}
DIGITS = {"A": "ABCDEFGHKXYZ", "N": "123456789", "n": "0123456789", "x": "0123456789abcdef"}


def make_code(kind: str, generator: random.Random) -> str:
    """Return a code of a kind of `LISTS`."""
    if kind == "{date}":
        year, month, day = (generator.randint(*r) for r in ((2015, 2026), (1, 12), (1, 28)))
        return f"{year}-{month:02}-{day:02}"
    if kind == "{surname}":
        return "".join(generator.choices(SYLLABLES.split(), k=3)).title()
    return "".join(generator.choice(DIGITS.get(letter, letter)) for letter in kind)


def make_list(name: str, count: int) -> Lines:
    """Return the lines of a list and their codes."""
    generator = random.Random(name)
    kind, pattern = LISTS[name]
    codes: dict[str, None] = {}
    while len(codes) < count:
        codes.setdefault(make_code(kind, generator))
    lines = []
    for code in codes:
        drawn = {word: generator.choice(choices.split()) for word, choices in WORDS.items()}
        lines.append((pattern.format(code=code, **drawn), code))
    return lines


def precision(lines: Lines, encoder: Encoder, is_plain: bool) -> float:
    """Return the percentage of codes whose line is first."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        index = CorpusIndex.build(path, [text for text, _ in lines], encoder, plain=is_plain)
        results = index.search([code for _, code in lines], encoder, k=1)
    right = 0
    for row, hits in enumerate(results):
        right += bool(hits) and hits[0].line == row
    return round(100 * right / len(lines), 1)


def measure(lists: dict[str, Lines], encoder: Encoder) -> dict[str, dict[str, float]]:
    """Return P@1 by list and index, and print it."""
    rows = {}
    print("| list | --plain | default |\n|---|---|---|")
    for name, lines in lists.items():
        row = {
            "plain": precision(lines, encoder, True),
            "default": precision(lines, encoder, False),
        }
        print(f"| {name} | {row['plain']} | {row['default']} |", flush=True)
        rows[name] = row
    return rows


def mixed(lists: Sequence[Lines]) -> Lines:
    """Return lines of all lists in turn, as many as a list has."""
    return [lists[row % len(lists)][row] for row in range(len(lists[0]))]


def main() -> None:
    parser = command_line(__doc__)
    parser.add_argument("--model", required=True, help="model folder or name")
    parser.add_argument("--lines", type=int, default=200, metavar="N", help="lines of a list")
    args = parser.parse_args()
    encoder = load(args.model)
    lists = {name: make_list(name, args.lines) for name in LISTS}
    lists["all kinds"] = mixed(list(lists.values()))
    rows = measure(lists, encoder)
    results = {"model": args.model, "fingerprint": encoder.fingerprint, "machine": machine()}
    write_results(args.output, results | {"lines": args.lines, "P@1": rows})


if __name__ == "__main__":
    main()
