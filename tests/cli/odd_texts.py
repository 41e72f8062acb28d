"""Gives text in every format, with odd characters and damage, to every command that reads text. The
result must be that of the same text as plain UTF-8, or an error.
"""

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from html import escape
from pathlib import Path

import numpy as np
import regex
import small_model
import toy
from archives import tar_of, zip_of
from backports import zstd
from conftest import contents, lxsr_here

Pairs = list[tuple[str, str]]
# The most that a command over a few lines may take.
SECONDS = 60
# Each character with one of these properties or categories of Unicode is in a text.
PROPERTIES = (
    "Default_Ignorable_Code_Point",
    "White_Space",
    "Bidi_Control",
    "Variation_Selector",
    "Join_Control",
    "Dash",
    "Pattern_White_Space",
    "Quotation_Mark",
    "Sentence_Terminal",
    "Deprecated",
    "Extender",
    "Emoji_Modifier",
    "Cc",
    "Cf",
    "Zl",
    "Zp",
    "Zs",
    "Me",
    "Sk",
    "Nl",
    "No",
    "Noncharacter_Code_Point",
)
CHARACTERS_PER_TEXT = 48
BASE = toy.sentences(12)
SIGNS = (
    "a",
    '"b"',
    "'c",
    "&",
    "<d>",
    "#e",
    "{f}",
    "\\n",
    "%s",
    "$g",
    "1,5",
    "|",
    "漢字",
    "かな",
    "한국어",
    "ไทย",
    "עברית",
)


@cache
def texts() -> dict[str, Pairs]:
    """Sentence pairs that are hard to read, by name."""
    english = [source for source, _ in BASE]
    french = [target for _, target in BASE]
    pairs_by_name = {
        "plain": BASE,
        "one pair": BASE[:1],
        "odd words": [],
        "signs first": [],
        "decomposed": [],
        "not for CSV": [],
        "mark-up": [],
        "a long line": [*BASE[:5], (" ".join(english * 20), " ".join(french * 20))],
        "codes": [
            *BASE,
            ("7", "7"),
            ("nan", "NaN"),
            ("null", "None"),
            ("-", "-"),
            ("en", "fr"),
            ("1e5", "0x7"),
        ],
        "emoji": [],
    }
    for (en, fr), sign in zip(BASE * 2, SIGNS, strict=False):
        pairs_by_name["odd words"].append((f"{en} {sign}", f"{sign} {fr}"))
    for (en, fr), sign in zip(BASE, "#-=+@<{[>\"'*", strict=True):
        pairs_by_name["signs first"].append((f"{sign} {en}", f"{sign}{fr}"))
    for en, fr in BASE:
        decomposed = (f"{en} e\u0301t\u00e9", f"{fr} n\u0303 \u1100\u1161")
        mark_up = (f"<b>{en}</b> &amp; 1 < 2", f"{fr} &lt;br/&gt; ]]> <!-- --> <?x?>")
        emoji = (f"{en} \U0001f469\u200d\U0001f4bb", f"\U0001f1eb\U0001f1f7 {fr} \u2764\ufe0f")
        pairs_by_name["decomposed"].append(decomposed)
        pairs_by_name["not for CSV"].append((f'{en}, "{fr}"', f'"{fr}"; \'{en}'))
        pairs_by_name["mark-up"].append(mark_up)
        pairs_by_name["emoji"].append(emoji)
    for name in PROPERTIES:
        characters = characters_with(name)
        for start in range(0, len(characters), CHARACTERS_PER_TEXT):
            part = characters[start : start + CHARACTERS_PER_TEXT]
            pairs = []
            for (en, fr), char in zip(BASE * 4, part, strict=False):
                pairs.append((f"{en[:5]}{char}{en[5:]} {char}x", f"{char}{fr}{char}"))
            pairs_by_name[f"{name} {start}"] = pairs
    return pairs_by_name


@cache
def all_characters() -> str:
    """Every character of Unicode, in one string, which a pattern searches in milliseconds."""
    return "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)


def characters_with(name: str) -> list[str]:
    """The first 400 characters with a property, without tabs, ends of lines and NUL."""
    characters = regex.findall(rf"\p{{{name}}}", all_characters())
    return [character for character in characters if character not in "\0\t\n\r"][:400]


@dataclass(frozen=True)
class Format:
    """A format of text: the ending of the file name, a function from lines or pairs to bytes, and
    whether every command must be able to read it.
    """

    ending: str
    write: Callable[[list], bytes]
    is_read: bool = False


def flat(lines: list[str]) -> bytes:
    return "".join(f"{line}\n" for line in lines).encode("utf-8", "surrogatepass")


def joined(pack: Callable[[bytes], bytes], lines: list[str]) -> bytes:
    """Two packed files one after the other."""
    return pack(flat(lines[:3])) + pack(flat(lines[3:]))


def encoded(encoding: str, lines: list[str]) -> bytes:
    last = "\u00e9" if encoding in ("latin-1", "cp1252") else "\u044f"
    return "\n".join([*lines[:-1], f"{lines[-1]} {last}\n"]).encode(encoding, "ignore")


PACKS = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": zstd.compress, ".bz2": bz2.compress}
# The formats of a file with one side.
SIDES = {
    "as it is": Format("", flat, True),
    "a name with blanks": Format(" a b", flat),
    "CRLF": Format("", lambda lines: flat(lines).replace(b"\n", b"\r\n"), True),
    "mixed ends": Format("", lambda lines: flat(lines).replace(b"\n", b"\r\n", 3), True),
    "no last end": Format("", lambda lines: flat(lines)[:-1], True),
    "a BOM": Format("", lambda lines: codecs.BOM_UTF8 + flat(lines), True),
    "a BOM and CRLF": Format(
        "", lambda lines: codecs.BOM_UTF8 + flat(lines).replace(b"\n", b"\r\n"), True
    ),
    **{
        ending: Format(ending, lambda lines, pack=pack: pack(flat(lines)), True)
        for ending, pack in PACKS.items()
    },
    **{
        ending.upper(): Format(ending.upper(), lambda lines, pack=pack: pack(flat(lines)), True)
        for ending, pack in PACKS.items()
    },
    **{
        f"two {ending}": Format(ending, partial(joined, pack), True)
        for ending, pack in PACKS.items()
    },
    **{
        f"cut {ending}": Format(ending, lambda lines, pack=pack: pack(flat(lines))[:-9])
        for ending, pack in PACKS.items()
    },
    **{
        f"{ending} and more": Format(ending, lambda lines, pack=pack: pack(flat(lines)) + b"more")
        for ending, pack in PACKS.items()
    },
    **{
        f"hidden {ending}": Format("", lambda lines, pack=pack: pack(flat(lines)))
        for ending, pack in PACKS.items()
    },
    **{f"no {ending}": Format(ending, flat) for ending in PACKS},
    ".gz twice": Format(".gz", lambda lines: gzip.compress(gzip.compress(flat(lines)))),
    ".zip": Format(".zip", lambda lines: zip_of(("x", flat(lines)))),
    ".zip of two": Format(".zip", lambda lines: zip_of(("x", flat(lines)), ("y", flat(lines)))),
    ".zip of none": Format(".zip", lambda lines: zip_of()),
    "cut .zip": Format(".zip", lambda lines: zip_of(("x", flat(lines)))[:-9]),
    ".tar.gz": Format(".tar.gz", lambda lines: tar_of(("x", flat(lines)))),
    "CR": Format("", lambda lines: flat(lines).replace(b"\n", b"\r")),
    "NUL for ends": Format("", lambda lines: flat(lines).replace(b"\n", b"\0")),
    "NUL": Format("", lambda lines: flat([*lines[:-1], f"\0{lines[-1]}"])),
    "cut in a letter": Format("", lambda lines: flat([*lines, "\u6f22"])[:-2]),
    "bytes that are no letter": Format("", lambda lines: flat(lines) + b"\xff\xfe x\n"),
    "half of a surrogate pair": Format("", lambda lines: flat([*lines, "\ud83d x"])),
    **{
        encoding: Format("", partial(encoded, encoding))
        for encoding in (
            "utf-16",
            "utf-16-le",
            "utf-16-be",
            "utf-32",
            "latin-1",
            "cp1252",
            "shift-jis",
            "gb18030",
        )
    },
    "empty": Format("", lambda lines: b""),
    "blank": Format("", lambda lines: b"\n \n\t\n"),
    "a BOM alone": Format("", lambda lines: codecs.BOM_UTF8),
    "PDF": Format(".pdf", lambda lines: b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n" + flat(lines)),
    "a pipe": Format("", flat),
    "a folder": Format("", lambda lines: b""),
    "a link to itself": Format("", lambda lines: b""),
}


def table(
    dialect: str, header: tuple[str, ...], row: Callable[[int, str, str], tuple], pairs: Pairs
) -> bytes:
    """A CSV with the delimiter `dialect`, or, with the dialect `tabs`, a TSV without quotes."""
    rows = [header] if header else []
    for number, (source, target) in enumerate(pairs):
        rows.append(row(number, source, target))
    if dialect == "tabs":
        return flat(["\t".join(map(str, cells)) for cells in rows])
    stream = io.StringIO()
    csv.writer(stream, delimiter=dialect, lineterminator="\n").writerows(rows)
    return stream.getvalue().encode()


def memory(unit: str, head: str, foot: str, pairs: Pairs, encoding: str = "utf-8") -> bytes:
    """XML with one unit per pair."""
    content = f'<?xml version="1.0" encoding="{encoding}"?>\n{head}'
    for number, (source, target) in enumerate(pairs):
        content += unit.format(escape(source), escape(target), number)
    return f"{content}{foot}".encode(encoding, "xmlcharrefreplace")


def tmx(pairs: Pairs, source: str = "en", target: str = "fr", **options) -> bytes:
    unit = (
        '<tu><tuv xml:lang="%s"><seg>{0}</seg></tuv><tuv xml:lang="%s"><seg>{1}</seg></tuv></tu>\n'
    )
    head = f'<tmx version="1.4"><header srclang="{source}"/><body>\n'
    return memory(unit % (source, target), head, "</body></tmx>", pairs, **options)


def xliff(pairs: Pairs) -> bytes:
    head = '<xliff version="1.2" xmlns="urn:oasis:names:tc:xliff:document:1.2"><file source-language="en" '
    head += 'target-language="fr" original="x" datatype="plaintext"><body>\n'
    unit = '<trans-unit id="{2}"><source>{0}</source><target>{1}</target></trans-unit>\n'
    return memory(unit, head, "</body></file></xliff>", pairs)


def po(pairs: Pairs) -> bytes:
    content = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: fr\\n"\n\n'
    for source, target in pairs:
        content += f"msgid {quoted(source)}\nmsgstr {quoted(target)}\n\n"
    return content.encode()


def quoted(text: str) -> str:
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def two_columns(_: int, source: str, target: str) -> tuple:
    return source, target


def five_columns(number: int, source: str, target: str) -> tuple:
    return f"https://a.b/{number}", f"https://c.d/{number}", source, target, 0.5


def json_lines(pairs: Pairs) -> bytes:
    return flat([json.dumps({"en": source, "fr": target}) for source, target in pairs])


LANGUAGES = ("en", "fr")
FIVE_NAMES = ("url1", "url2", "en", "fr", "score")
# The formats of a file with both sides.
PAIRS = {
    ".tsv": Format(".tsv", partial(table, "tabs", (), two_columns), True),
    ".tsv with a header": Format(".tsv", partial(table, "tabs", ("source", "target"), two_columns), True),
    ".tsv of five columns": Format(".tsv", partial(table, "tabs", FIVE_NAMES, five_columns), True),
    ".TSV.GZ": Format(".TSV.GZ", lambda pairs: gzip.compress(table("tabs", (), two_columns, pairs)), True),
    ".tsv, CRLF": Format(".tsv", lambda pairs: table("tabs", (), two_columns, pairs).replace(b"\n", b"\r\n"), True),
    ".tsv, blank and short rows": Format(".tsv", lambda pairs: table("tabs", (), two_columns, pairs) + b"\n\t\nx\n"),
    ".tsv of one column": Format(".tsv", lambda pairs: flat([source for source, _ in pairs])),
    ".tsv, cut": Format(".tsv.gz", lambda pairs: gzip.compress(table("tabs", (), two_columns, pairs))[:-9]),
    ".csv, ,": Format(".csv", partial(table, ",", LANGUAGES, two_columns), True),
    ".csv, ;": Format(".csv", partial(table, ";", LANGUAGES, two_columns), True),
    ".csv without a header": Format(".csv", partial(table, ",", (), two_columns), True),
    ".csv of five columns": Format(".csv", partial(table, ",", FIVE_NAMES, five_columns), True),
    ".csv with a BOM": Format(".csv", lambda pairs: codecs.BOM_UTF8 + table(",", LANGUAGES, two_columns, pairs), True),
    ".csv with an open quote": Format(".csv", lambda pairs: table(",", LANGUAGES, two_columns, pairs) + b'"x,y\n'),
    ".tmx": Format(".tmx", tmx, True),
    ".tmx of countries": Format(".tmx", partial(tmx, source="en-US", target="FR-ca"), True),
    ".tmx of three letters": Format(".tmx", partial(tmx, source="eng", target="fra"), True),
    ".tmx in UTF-16": Format(".tmx", partial(tmx, encoding="utf-16"), True),
    ".tmx in Latin-1": Format(".tmx", partial(tmx, encoding="iso-8859-1"), True),
    ".tmx.gz": Format(".tmx.gz", lambda pairs: gzip.compress(tmx(pairs)), True),
    ".tmx of other languages": Format(".tmx", partial(tmx, source="de", target="it")),
    ".tmx, cut": Format(".tmx", lambda pairs: tmx(pairs)[:-40]),
    ".xlf": Format(".xlf", xliff, True),
    ".po": Format(".po", po, True),
    ".jsonl": Format(".jsonl", json_lines),
    ".json": Format(".json", lambda pairs: json.dumps(pairs).encode()),
    ".sgm": Format(".sgm", partial(memory, '<seg id="{2}">{0}</seg>\n', "<srcset><doc>", "</doc></srcset>")),
}  # fmt: skip

MODEL = "--model in/model"
HELD = "--lang-pairs en-fr --until clean --work out --valid-size 2 --test-size 2 --workers 1 --filters length"
# Commands over the file of one side, {0}, and of the other, {1}; {2} is the prefix of both.
OF_SIDES = {
    "embed": f"embed {MODEL} --input {{0}} --output out/x.npy",
    "index": f"index {MODEL} --input {{0}} --output out/index",
    "search": "search --index in/index --input {0} --k 2 --output out/hits.tsv",
    "mine": f"mine {MODEL} --source {{0}} --target {{1}} --output out/p.tsv",
    "score": f"score {MODEL} --source {{0}} --target {{1}} --output out/s.tsv",
    "xsr": f"eval xsr {MODEL} --source {{0}} --target {{1}} --output out/a.jsonl",
    "web": "export web --model lxsr-static --input {0} --output out/web",
    "prepare": f"prepare --data {{2}} {HELD}",
    "exclude": f"prepare --data in/more {HELD} --exclude {{0}}",
}
# Commands over a file with both sides, {0}.
OF_PAIRS = {
    "score table": f"score {MODEL} --input {{0}} --output out/s.tsv",
    "prepare": f"prepare --data {{0}} {HELD}",
    "exclude": f"prepare --data in/more {HELD} --exclude {{0}}",
    **{
        name: OF_SIDES[name].replace("{1}", "{0}")
        for name in ("embed", "index", "search", "mine", "xsr", "web")
    },
}
# The commands that read both sides of a file, and the command over the sides with the same result.
READS_BOTH_SIDES = {"score table": "score", "prepare": "prepare", "exclude": "exclude"}


def is_table(form: Format) -> bool:
    return form.ending.lower().startswith((".tsv", ".csv"))


@cache
def cases() -> list[tuple[str, str, str]]:
    """Every command with every format and the names of its texts: all texts for the formats that
    must be read, two for the others.
    """
    all_cases = []
    for formats, commands in ((SIDES, OF_SIDES), (PAIRS, OF_PAIRS)):
        for name, form in formats.items():
            for command in commands:
                for text in texts() if form.is_read else ("plain", "odd words"):
                    all_cases.append((command, name, text))
    return all_cases


def read_outputs(folder: Path) -> dict[str, object]:
    """The outputs of a command that depend only on the text."""
    outputs = {}
    for path, content in contents(folder / "out").items():
        if path.endswith(".npy"):
            outputs["rows"] = np.load(folder / "out" / path).tolist()
        elif path.endswith("index.html"):
            outputs["sentences"] = re.search(rb'"sentences": (\[.*\])', content)[1]
        elif path.endswith(".jsonl"):
            outputs["scores"] = [json.loads(line)["values"] for line in content.splitlines()]
        elif path == "s.tsv":
            outputs["scores"] = [line.split(b"\t")[0] for line in content.splitlines()]
        elif re.search(r"(train|valid|test)\.(en|fr)$|\.tsv$|faiss$|sentences", path):
            outputs[Path(path).name] = b" ".join(content.split()) if "/" in path else content
    return outputs


@contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the block if it takes longer."""

    def stop(*_):
        raise TimeoutError(f"not over after {seconds} s")

    handler = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, handler)


def put(path: Path, name: str, content: bytes) -> None:
    """Write a file, or make a folder, a link or a pipe in its place."""
    if name == "a folder":
        path.mkdir()
    elif name == "a link to itself":
        path.symlink_to(path.name)
    elif name == "a pipe":
        os.mkfifo(path)
        threading.Thread(target=write_to_pipe, args=(path, content), daemon=True).start()
    else:
        path.write_bytes(content)


def write_to_pipe(path: Path, content: bytes) -> None:
    """Write into a pipe as soon as a process reads it; give up if the pipe is removed."""
    while path.exists():
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)
            continue
        with open(descriptor, "wb") as stream:
            stream.write(content)
        return


def has_warning(output: str, usual_output: str) -> bool:
    """Whether the output has a line that the usual output lacks, apart from numbers and paths."""
    variable = re.compile(r"[\d.,:%]+|in/\S+")
    usual_lines = {variable.sub("", line) for line in usual_output.splitlines()}
    return any(variable.sub("", line) not in usual_lines for line in output.splitlines())


def difference(outputs: dict[str, object], expected: dict[str, object]) -> str:
    lines = []
    for key in {*outputs, *expected}:
        if outputs.get(key) != expected.get(key):
            lines.append(f"{key}: {str(outputs.get(key))[:300]}")
            lines.append(f"expected: {str(expected.get(key))[:300]}")
    return "\n".join(lines)


def write_inputs(folder: Path) -> Path:
    """A model, an index, and pairs from which the odd text is excluded."""
    small_model.write_folder(folder / "in" / "model")
    shutil.rmtree(folder / "in" / "model.data")
    toy.write(folder / "in" / "more", [*BASE, *toy.sentences(40, seed=3)])
    (folder / "in" / "lines").write_bytes(flat([target for _, target in toy.sentences(40, seed=3)]))
    lxsr_here("index", *MODEL.split(), "--input", "in/lines", "--output", "in/index", folder=folder)
    return folder / "in"


@dataclass
class Run:
    """The end of a command: its exit status (None if it did not end), outputs and messages."""

    status: int | None
    outputs: dict[str, object]
    messages: str


@dataclass
class Attack:
    """Runs commands in copies of `inputs`, below the folder `work`."""

    inputs: Path
    work: Path
    _plain_runs: dict[tuple[str, str], Run] = field(default_factory=dict)

    def run(self, words: str, form: Format, name: str, pairs: Pairs) -> Run:
        """Run a command over pairs in a format, or in a pipe, folder or link of that name."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.inputs, self.work / "in")
        toy.write(self.work / "in" / "p", pairs)
        if form in PAIRS.values():
            source = target = f"in/x{form.ending}"
            put(self.work / source, name, form.write(pairs))
        else:
            source, target = (f"in/x.{language}{form.ending}" for language in LANGUAGES)
            put(self.work / source, name, form.write([english for english, _ in pairs]))
            put(self.work / target, name, form.write([french for _, french in pairs]))
        # Only `prepare` needs both sides in the same format.
        if "prepare" not in words:
            target = "in/p.fr"
        command = [word.format(source, target, "in/x") for word in words.split()]
        try:
            with time_limit(SECONDS):
                result = lxsr_here(*command, check=False, folder=self.work)
        except TimeoutError:
            return Run(None, {}, "did not end")
        outputs = read_outputs(self.work) if result.returncode == 0 else {}
        return Run(result.returncode, outputs, result.stdout + result.stderr)

    def expected(self, verb: str, text: str, is_one_file: bool) -> Run:
        """Run the command over the same text as plain UTF-8, with a file per side."""
        if is_one_file:
            words = OF_SIDES[READS_BOTH_SIDES.get(verb, verb)]
            if verb == "exclude":
                words += " {1}"
        else:
            words = OF_SIDES[verb]
        if (words, text) not in self._plain_runs:
            run = self.run(words, SIDES["as it is"], "", texts()[text])
            self._plain_runs[words, text] = run
        return self._plain_runs[words, text]

    def problem(self, verb: str, name: str, text: str) -> str | None:
        """Run a case.

        Returns:
            A description of what went wrong, or None.
        """
        is_one_file = name in PAIRS
        form = PAIRS[name] if is_one_file else SIDES[name]
        words = OF_PAIRS[verb] if is_one_file else OF_SIDES[verb]
        run = self.run(words, form, name, texts()[text])
        errors = len(re.findall(r"^lxsr.*: error: ", run.messages, re.MULTILINE))
        ends_cleanly = (run.status, errors) in ((0, 0), (2, 1)) and "Traceback" not in run.messages
        if not ends_cleanly:
            return f"status {run.status}, {errors} lines of error\n{run.messages[-1500:]}"
        expected = self.expected(verb, text, is_one_file)
        has_warned = has_warning(run.messages, expected.messages)
        if is_one_file and verb not in READS_BOTH_SIDES:
            # Lines of a table may be what the user wants; lines of XML are not.
            if run.status == 0 and not is_table(form) and not has_warned:
                return "read mark-up as text without a message"
            return None
        if run.status == 2:
            must_be_read = (
                form.is_read
                and (verb != "score table" or is_table(form))
                and expected.status == 0
                and text.split()[0] not in PROPERTIES
            )
            return f"refused\n{run.messages[-500:]}" if must_be_read else None
        # Messages of programs are read without mark-up and the last full stop.
        if name == ".po":
            return None
        if expected.status == 0 and run.outputs != expected.outputs and not has_warned:
            return "read wrongly without a message\n" + difference(run.outputs, expected.outputs)
        return None


def main() -> None:
    """Run a number of random cases: `python tests/cli/odd_texts.py CASES SEED`."""
    count = int(sys.argv[1])
    seed = int(sys.argv[2])
    sample = random.Random(seed).sample(cases(), min(count, len(cases())))
    with tempfile.TemporaryDirectory() as folder:
        attack = Attack(write_inputs(Path(folder) / "made"), Path(folder) / "work")
        for number, case in enumerate(sample, start=1):
            problem = attack.problem(*case)
            if problem:
                print(number, case, problem, flush=True)
    print(f"{len(sample):,} of {len(cases()):,} cases, seed {seed}")


if __name__ == "__main__":
    main()
