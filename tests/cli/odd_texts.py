"""Text in every format, spelling and damage, given to every verb that reads text: what each has to
read is known.
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
SECONDS = 60  # for one command over a few lines
# properties and categories of Unicode, of which every character is somewhere in a text
PROPERTIES = (
    *(
        "Default_Ignorable_Code_Point",
        "White_Space",
        "Bidi_Control",
        "Variation_Selector",
        "Join_Control",
        "Dash",
    ),
    *(
        "Pattern_White_Space",
        "Quotation_Mark",
        "Sentence_Terminal",
        "Deprecated",
        "Extender",
        "Emoji_Modifier",
    ),
    *("Cc", "Cf", "Zl", "Zp", "Zs", "Me", "Sk", "Nl", "No", "Noncharacter_Code_Point"),
)
EACH = 48  # characters of a property in one text
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
    """Pairs with what a reader may stumble over, by name."""
    found = {"plain": BASE, "one pair": BASE[:1]}
    found["odd words"] = [
        (f"{a} {sign}", f"{sign} {b}") for (a, b), sign in zip(BASE * 2, SIGNS, strict=False)
    ]
    found["signs first"] = [
        (f"{sign} {a}", f"{sign}{b}") for (a, b), sign in zip(BASE, "#-=+@<{[>\"'*", strict=True)
    ]
    found["decomposed"] = [(f"{a} e\u0301t\u00e9", f"{b} n\u0303 \u1100\u1161") for a, b in BASE]
    found["not for CSV"] = [(f'{a}, "{b}"', f'"{b}"; \'{a}') for a, b in BASE]
    found["mark-up"] = [
        (f"<b>{a}</b> &amp; 1 < 2", f"{b} &lt;br/&gt; ]]> <!-- --> <?x?>") for a, b in BASE
    ]
    found["a long line"] = [
        *BASE[:5],
        (" ".join(a for a, _ in BASE * 20), " ".join(b for _, b in BASE * 20)),
    ]
    found["codes"] = [
        *BASE,
        ("7", "7"),
        ("nan", "NaN"),
        ("null", "None"),
        ("-", "-"),
        ("en", "fr"),
        ("1e5", "0x7"),
    ]
    found["emoji"] = [
        (f"{a} \U0001f469\u200d\U0001f4bb", f"\U0001f1eb\U0001f1f7 {b} \u2764\ufe0f")
        for a, b in BASE
    ]
    for name in PROPERTIES:
        every = letters_with(name)
        for start in range(0, len(every), EACH):
            letters = zip(BASE * (EACH // len(BASE)), every[start : start + EACH], strict=False)
            found[f"{name} {start}"] = [
                (f"{a[:5]}{x}{a[5:]} {x}x", f"{x}{b}{x}") for (a, b), x in letters
            ]
    return found


@cache
def all_characters() -> str:
    """Every character of Unicode, in one string, which a pattern searches in milliseconds."""
    return "".join(chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000)


def letters_with(name: str) -> list[str]:
    """Every character with a property, but ends of lines, tabs, NUL and the rows of tags: 400 say
    what 4,000 do.
    """
    letters = regex.findall(rf"\p{{{name}}}", all_characters())
    return [letter for letter in letters if letter not in "\0\t\n\r"][:400]


@dataclass(frozen=True)
class Format:
    """How a file is written: the ending of its name, its bytes, and whether every verb has to read
    it.
    """

    ending: str
    write: Callable[[list], bytes]  # of lines or of pairs
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
SIDES = {  # formats of one side
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
        e.upper(): Format(e.upper(), lambda lines, pack=pack: pack(flat(lines)), True)
        for e, pack in PACKS.items()
    },
    **{
        f"two {ending}": Format(ending, partial(joined, pack), True)
        for ending, pack in PACKS.items()
    },
    **{
        f"cut {e}": Format(e, lambda lines, pack=pack: pack(flat(lines))[:-9])
        for e, pack in PACKS.items()
    },
    **{
        f"{e} and more": Format(e, lambda lines, pack=pack: pack(flat(lines)) + b"more")
        for e, pack in PACKS.items()
    },
    **{
        f"hidden {e}": Format("", lambda lines, pack=pack: pack(flat(lines)))
        for e, pack in PACKS.items()
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
    dialect: str, head: tuple[str, ...], row: Callable[[int, str, str], tuple], pairs: Pairs
) -> bytes:
    """Rows as Python's csv writes them; "tabs": without quotes."""
    rows = [*([head] if head else []), *(row(number, *pair) for number, pair in enumerate(pairs))]
    if dialect == "tabs":
        return flat(["\t".join(map(str, cells)) for cells in rows])
    stream = io.StringIO()
    csv.writer(stream, delimiter=dialect, lineterminator="\n").writerows(rows)
    return stream.getvalue().encode()


def memory(unit: str, head: str, foot: str, pairs: Pairs, encoding: str = "utf-8") -> bytes:
    """XML with a unit a pair."""
    units = (unit.format(escape(a), escape(b), number) for number, (a, b) in enumerate(pairs))
    declared = f'<?xml version="1.0" encoding="{encoding}"?>\n'
    return f"{declared}{head}{''.join(units)}{foot}".encode(encoding, "xmlcharrefreplace")


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
    head = 'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\nLanguage: fr\\n"\n\n'
    return (head + "".join(f"msgid {quoted(a)}\nmsgstr {quoted(b)}\n\n" for a, b in pairs)).encode()


def quoted(text: str) -> str:
    return '"{}"'.format(text.replace("\\", "\\\\").replace('"', '\\"'))


def two(_: int, a: str, b: str) -> tuple:
    return a, b


def five(number: int, a: str, b: str) -> tuple:
    return f"https://a.b/{number}", f"https://c.d/{number}", a, b, 0.5


LANGUAGES, URLS = ("en", "fr"), ("url1", "url2", "en", "fr", "score")
PAIRS = {  # formats of both sides in one file
    ".tsv": Format(".tsv", partial(table, "tabs", (), two), True),
    ".tsv with a header": Format(".tsv", partial(table, "tabs", ("source", "target"), two), True),
    ".tsv of five columns": Format(".tsv", partial(table, "tabs", URLS, five), True),
    ".TSV.GZ": Format(".TSV.GZ", lambda pairs: gzip.compress(table("tabs", (), two, pairs)), True),
    ".tsv, CRLF": Format(".tsv", lambda pairs: table("tabs", (), two, pairs).replace(b"\n", b"\r\n"), True),
    ".tsv, blank and short rows": Format(".tsv", lambda pairs: table("tabs", (), two, pairs) + b"\n\t\nx\n"),
    ".tsv of one column": Format(".tsv", lambda pairs: flat([a for a, _ in pairs])),
    ".tsv, cut": Format(".tsv.gz", lambda pairs: gzip.compress(table("tabs", (), two, pairs))[:-9]),
    **{f".csv, {d}": Format(".csv", partial(table, d, LANGUAGES, two), True) for d in (",", ";")},
    ".csv without a header": Format(".csv", partial(table, ",", (), two), True),
    ".csv of five columns": Format(".csv", partial(table, ",", URLS, five), True),
    ".csv with a BOM": Format(".csv", lambda pairs: codecs.BOM_UTF8 + table(",", LANGUAGES, two, pairs), True),
    ".csv with an open quote": Format(".csv", lambda pairs: table(",", LANGUAGES, two, pairs) + b'"x,y\n'),
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
    ".jsonl": Format(".jsonl", lambda pairs: flat([json.dumps({"en": a, "fr": b}) for a, b in pairs])),
    ".json": Format(".json", lambda pairs: json.dumps(pairs).encode()),
    ".sgm": Format(".sgm", partial(memory, '<seg id="{2}">{0}</seg>\n', "<srcset><doc>", "</doc></srcset>")),
}  # fmt: skip

MODEL = "--model in/model"
HELD = "--lang-pairs en-fr --until clean --work out --valid-size 2 --test-size 2 --workers 1 --filters length"
OF_SIDES = {  # commands over one side, {0}, and the other, {1}; the two have one name without language, {2}
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
OF_PAIRS = {  # commands over both sides in one file, {0}
    "score table": f"score {MODEL} --input {{0}} --output out/s.tsv",
    "prepare": f"prepare --data {{0}} {HELD}",
    "exclude": f"prepare --data in/more {HELD} --exclude {{0}}",
    **{
        name: OF_SIDES[name].replace("{1}", "{0}")
        for name in ("embed", "index", "search", "mine", "xsr", "web")
    },
}
# which commands read the same of sides
SAME = {"score table": "score", "prepare": "prepare", "exclude": "exclude"}


def is_table(form: Format) -> bool:
    return form.ending.lower().startswith((".tsv", ".csv"))


@cache
def cases() -> list[tuple[str, str, str]]:
    """Every command with every format, and the text in it: those of all texts with what has to be
    read.
    """
    found = []
    for formats, verbs in ((SIDES, OF_SIDES), (PAIRS, OF_PAIRS)):
        for name, form in formats.items():
            chosen = texts() if form.is_read else ["plain", "odd words"]
            found += [(verb, name, text) for verb in verbs for text in chosen]
    return found


def result(folder: Path) -> dict[str, object]:
    """What a command made of the text: the files that depend on nothing else."""
    made = {}
    for path, content in contents(folder / "out").items():
        if path.endswith(".npy"):
            made["rows"] = np.load(folder / "out" / path).tolist()
        elif path.endswith("index.html"):
            made["sentences"] = re.search(rb'"sentences": (\[.*\])', content)[1]
        elif path.endswith(".jsonl"):
            made["scores"] = [json.loads(line)["values"] for line in content.splitlines()]
        elif path == "s.tsv":
            made["scores"] = [line.split(b"\t")[0] for line in content.splitlines()]
        elif re.search(r"(train|valid|test)\.(en|fr)$|\.tsv$|faiss$|sentences", path):
            made[Path(path).name] = b" ".join(content.split()) if "/" in path else content
    return made


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """Raise TimeoutError in the block when it takes longer."""

    def late(*_):
        raise TimeoutError(f"not over after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def put(path: Path, name: str, content: bytes) -> None:
    """Write a file, or what stands in its place; into a pipe its content is written once."""
    if name == "a folder":
        path.mkdir()
    elif name == "a link to itself":
        path.symlink_to(path.name)
    elif name == "a pipe":
        os.mkfifo(path)
        threading.Thread(target=fill, args=(path, content), daemon=True).start()
    else:
        path.write_bytes(content)


def fill(path: Path, content: bytes) -> None:
    """Write into a pipe as soon as anybody reads it, until the file is gone."""
    while path.exists():
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError:
            time.sleep(0.01)
            continue
        with open(descriptor, "wb") as stream:
            stream.write(content)
        return


def said_more(said: str, usual: str) -> bool:
    """Whether a line was said that is not usual, whatever its numbers."""
    variable = re.compile(r"[\d.,:%]+|in/\S+")
    usual_lines = {variable.sub("", line) for line in usual.splitlines()}
    return any(variable.sub("", line) not in usual_lines for line in said.splitlines())


def difference(made: dict[str, object], wanted: dict[str, object]) -> str:
    return "\n".join(
        f"{key}: {str(made.get(key))[:300]}\nexpected: {str(wanted.get(key))[:300]}"
        for key in {*made, *wanted}
        if made.get(key) != wanted.get(key)
    )


def write_inputs(folder: Path) -> Path:
    """What commands need beside the odd text: an index, and pairs from which text is excluded."""
    small_model.write_folder(folder / "in" / "model")
    shutil.rmtree(folder / "in" / "model.data")
    toy.write(folder / "in" / "more", [*BASE, *toy.sentences(40, seed=3)])
    (folder / "in" / "lines").write_bytes(flat([b for _, b in toy.sentences(40, seed=3)]))
    lxsr_here("index", *MODEL.split(), "--input", "in/lines", "--output", "in/index", folder=folder)
    return folder / "in"


@dataclass
class Attack:
    """Runs commands in copies of `inputs`, below the folder `work`."""

    inputs: Path
    work: Path
    _known: dict = field(default_factory=dict)

    def run(
        self, words: str, form: Format, name: str, pairs: Pairs
    ) -> tuple[int | None, dict[str, object], str]:
        """Returns: exit status (None: it did not end), what it made, and what it said."""
        shutil.rmtree(self.work, ignore_errors=True)
        shutil.copytree(self.inputs, self.work / "in")
        one_file = form in PAIRS.values()
        sides = [pairs] if one_file else [[a for a, _ in pairs], [b for _, b in pairs]]
        odd = [f"in/x{'' if one_file else f'.{language}'}{form.ending}" for language in LANGUAGES]
        plain = ["in/p.en", "in/p.fr"]
        toy.write(self.work / "in" / "p", pairs)
        command = [
            word.format(odd[0], odd[1] if "prepare" in words else plain[1], "in/x")
            for word in words.split()
        ]
        for path, lines in zip(odd, sides, strict=False):
            put(self.work / path, name, form.write(lines))
        try:
            with within(SECONDS):
                done = lxsr_here(*command, check=False, folder=self.work)
        except TimeoutError:
            return None, {}, "did not end"
        made = result(self.work) if done.returncode == 0 else {}
        return done.returncode, made, done.stdout + done.stderr

    def expected(
        self, verb: str, text: str, one_file: bool
    ) -> tuple[int | None, dict[str, object], str]:
        """What the command does with the same text, plain; of a file of both sides, what others do
        with the sides.
        """
        words = OF_SIDES[SAME.get(verb, verb)] if one_file else OF_SIDES[verb]
        if one_file and verb == "exclude":
            words += " {1}"
        return self.known(words, text)

    def known(self, words: str, text: str):
        if (words, text) not in self._known:
            self._known[words, text] = self.run(words, SIDES["as it is"], "", texts()[text])
        return self._known[words, text]

    def problem(self, verb: str, name: str, text: str) -> str | None:
        """What is wrong with how a command ended, or with what it read without a word."""
        one_file = name in PAIRS
        form = PAIRS[name] if one_file else SIDES[name]
        words = OF_PAIRS[verb] if one_file else OF_SIDES[verb]
        status, made, said = self.run(words, form, name, texts()[text])
        errors = len(re.findall(r"^lxsr.*: error: ", said, re.MULTILINE))
        if status is None or (status, errors) not in ((0, 0), (2, 1)) or "Traceback" in said:
            return f"status {status}, {errors} lines of error\n{said[-1500:]}"
        wanted = self.expected(verb, text, one_file)
        if one_file and verb not in SAME:  # lines of a table may be what is asked for
            is_wrong = status == 0 and not is_table(form) and not said_more(said, wanted[2])
            return "read mark-up as text without a word" if is_wrong else None
        # messages of programs are read without mark-up and the last full stop
        if name == ".po" and status == 0:
            return None
        if status == 2:
            must = form.is_read and (verb != "score table" or is_table(form))
            must = must and wanted[0] == 0 and text.split()[0] not in PROPERTIES
            return f"refused\n{said[-500:]}" if must else None
        if wanted[0] == 0 and made != wanted[1] and not said_more(said, wanted[2]):
            return "read wrongly without a word\n" + difference(made, wanted[1])
        return None


def main() -> None:
    """Attack with so many cases, drawn with a seed: `python tests/cli/odd_texts.py CASES SEED`."""
    count, seed = (int(word) for word in sys.argv[1:3])
    drawn = random.Random(seed).sample(cases(), min(count, len(cases())))
    with tempfile.TemporaryDirectory() as folder:
        attack = Attack(write_inputs(Path(folder) / "made"), Path(folder) / "work")
        for number, case in enumerate(drawn, start=1):
            if problem := attack.problem(*case):
                print(number, case, problem, flush=True)
    print(f"{len(drawn):,} of {len(cases()):,} cases, seed {seed}")


if __name__ == "__main__":
    main()
