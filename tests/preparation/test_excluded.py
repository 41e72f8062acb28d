"""Everything that --data reads is read by --exclude too, and test sets of WMT; what is not read is
refused.
"""

import bz2
import json
import os
import zipfile

import pytest
from test_catalogues import write_catalogue

from fairseq_lxsr.cli.main import main
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.preparation.config import Cleaning, PrepareConfig, SubwordOptions
from fairseq_lxsr.preparation.corpus import make_corpus
from fairseq_lxsr.preparation.excluded import files_to_exclude, sentences_to_exclude
from fairseq_lxsr.preparation.formats import find_source
from fairseq_lxsr.preparation.pipeline import prepare_corpora
from fairseq_lxsr.preparation.splits import HeldOut

pytest.importorskip("defusedxml")
pytest.importorskip("polib")

ENGLISH, FRENCH = (
    ("Wait for R&D, please", "See the file 7"),
    ("Attendez, s'il vous plaît", "Voyez le fichier 7"),
)
PAIRS = list(zip(ENGLISH, FRENCH, strict=True))


def xml(text):
    return text.replace("&", "&amp;")


UNITS = "".join(
    f'<tu><tuv xml:lang="en"><seg>{xml(en)}</seg></tuv><tuv xml:lang="fr"><seg>{xml(fr)}</seg></tuv></tu>'
    for en, fr in PAIRS
)
XLIFF = "".join(
    f"<trans-unit><source>{xml(en)}</source><target>{xml(fr)}</target></trans-unit>"
    for en, fr in PAIRS
)
SEGMENTS = "".join(f'<seg id="{number}">\n{xml(en)}\n</seg>\n' for number, en in enumerate(ENGLISH))
CSV = "".join(f'3,"{en}","{fr}"\n' for en, fr in PAIRS)
MESSAGES = "".join(f'msgid "{en}"\nmsgstr "{fr}"\n\n' for en, fr in PAIRS)
OBJECTS = "".join(json.dumps({"translation": {"en": en, "fr": fr}}) + "\n" for en, fr in PAIRS)
LINES = {
    language: "".join(f"{line}\n" for line in lines)
    for language, lines in (("en", ENGLISH), ("fr", FRENCH))
}
TSV = "".join(f"{en}\t{fr}\n" for en, fr in PAIRS)
# a file's name, its text, and what it is named by
FILES = {
    "x.txt": LINES["en"],
    "x.tsv": TSV,
    "x.csv": CSV,
    "x.tmx": f"<tmx><body>{UNITS}</body></tmx>",
    "X.TMX": f"<tmx><body>{UNITS}</body></tmx>",
    "x.xlf": f"<xliff><file source-language='en' target-language='fr'><body>{XLIFF}</body></file></xliff>",
    "x.mqxliff": f"<xliff><file source-language='en' target-language='fr'><body>{XLIFF}</body></file></xliff>",
    "x.sgm": f'<srcset setid="x" srclang="en">\n<doc docid="1">\n{SEGMENTS}</doc></srcset>\n',
    "wmt.src": f'<srcset setid="x" srclang="en">\n<doc docid="1">\n{SEGMENTS}</doc></srcset>\n',
    "wmt.xml": f'<?xml version="1.0"?><dataset id="x"><doc><src lang="en"><p>{SEGMENTS}</p></src></doc></dataset>',
    "memory": f"<?xml version='1.0'?>\n<tmx><body>{UNITS}</body></tmx>",
    "fr.po": f'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\n{MESSAGES}',
    "x.jsonl": OBJECTS,
    "x.JSONL": OBJECTS,
}


@pytest.fixture
def corpus(tmp_path):
    """A corpus of which two pairs are excluded: returns what `exclude` drops."""
    others = [
        (f"This is sentence {'x' * number}", f"Ceci est la phrase {'x' * number}")
        for number in range(30)
    ]
    for language, lines in zip(("en", "fr"), zip(*PAIRS, *others, strict=True), strict=True):
        (tmp_path / f"corpus.{language}").write_text(
            "".join(f"{line}\n" for line in lines), encoding="utf-8"
        )

    def dropped(*names):
        cleaning = Cleaning(exclude=tuple(map(str, names)))
        source = find_source(str(tmp_path / "corpus"), "en", "fr")
        return make_corpus(tmp_path / "made", ("en", "fr"), source, cleaning, HeldOut(2, 2))[
            "dropped"
        ].get("excluded", 0)

    return dropped


@pytest.mark.parametrize("name", FILES)
def test_every_format_is_excluded(tmp_path, corpus, name):
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    assert corpus(tmp_path / name) == 2
    (tmp_path / f"{name}.bz2").write_bytes(bz2.compress(FILES[name].encode()))
    assert {*ENGLISH} <= {*sentences_to_exclude(tmp_path / f"{name}.bz2")}
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr(name, FILES[name])
        packed.writestr("README", "about")
    assert {*ENGLISH} <= {*sentences_to_exclude(tmp_path / "x.zip")}


def test_folders_and_prefixes_are_excluded_as_they_are_read(tmp_path, corpus):
    for language, text in LINES.items():
        (tmp_path / f"dev.{language}").write_text(text, encoding="utf-8")
    assert files_to_exclude([str(tmp_path / "dev")], "eng", "fra") == [
        tmp_path / "dev.en",
        tmp_path / "dev.fr",
    ]
    assert corpus(tmp_path / "dev") == 2
    write_catalogue(tmp_path / "catalogues" / "fr" / "LC_MESSAGES" / "a.mo", dict(PAIRS))
    assert corpus(tmp_path / "catalogues") == 2


@pytest.mark.parametrize("name", ["x.json", "x.html", "page", "x.yaml", "x.docx"])
def test_what_is_no_text_of_sentences_is_refused(tmp_path, corpus, name):
    (tmp_path / name).write_bytes(
        b"PK\x03\x04\xff" if name.endswith("docx") else b"<!DOCTYPE html><p>See the file 7</p>"
    )
    with pytest.raises(InputError, match=rf"/{name}(: |, line 1: )"):
        corpus(tmp_path / name)
    with pytest.raises(InputError, match="missing"):
        corpus(tmp_path / "missing.tmx")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe .*pipe"):
        corpus(tmp_path / "pipe")
    (tmp_path / "bad.jsonl").write_text('{"en": "a"}\nno JSON\n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: 'no JSON'"):
        corpus(tmp_path / "bad.jsonl")


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("fr.po", f"{MESSAGES}<<<<<<< HEAD\n{MESSAGES}".encode(), "line 7: '<<<<<<< HEAD'"),
        ("fr.po", f'{MESSAGES}\nmsgid "a"b"\n'.encode(), "line 8: "),
        ("fr.po", b'msgid ""\nmsgstr "Content-Type: text/plain; charset=UTF-8\\n"\n\nmsgid "\xe9"', "line 4: "),
        ("fr.po", b'msgid ""\nmsgstr "Content-Type: text/plain; charset=Klingon\\n"\n', "Klingon"),
        ("fr.mo", b"\xde\x12\x04\x95", ""),
        ("x.txt", b"", ""),
        ("x.tsv", b" \t \n\n", ""),
        ("x.jsonl", b'{"id": 3}\n', ""),
        ("x.sgm", b"<srcset></srcset>", ""),
    ],
)  # fmt: skip
def test_a_text_without_readable_sentences_is_refused(tmp_path, corpus, name, content, place):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        corpus(tmp_path / name)
    assert name in str(error.value)
    assert place in str(error.value)


def test_a_catalogue_in_utf8_with_the_header_of_another_character_set_is_excluded(tmp_path, corpus):
    french = dict(zip(("one", "two"), FRENCH, strict=True))
    header = "Content-Type: text/plain; charset=ISO-8859-1"
    messages = "".join(f'msgid "{key}"\nmsgstr "{text}"\n\n' for key, text in french.items())
    (tmp_path / "fr.po").write_text(
        f'msgid ""\nmsgstr "{header}\\n"\n\n{messages}', encoding="utf-8"
    )
    assert corpus(tmp_path / "fr.po") == 2
    write_catalogue(tmp_path / "fr.mo", {"": f"{header}\n", **french})
    assert corpus(tmp_path / "fr.mo") == 2


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"{en} ||| {fr}\n" for en, fr in PAIRS),
        "Wait for R &amp; D , please\nSee the file 7\n",
        "Attendez , s &apos;il vous plaît\nVoyez le fichier 7\n",
        "Attendez, s&#39;il vous pla&icirc;t\nVoyez le fichier 7\n",
    ],
)
def test_the_texts_of_moses_are_excluded(tmp_path, corpus, text):
    (tmp_path / "x.txt").write_text(text, encoding="utf-8")
    assert corpus(tmp_path / "x.txt") == 2


def test_evaluation_text_in_another_spelling_is_excluded(tmp_path):
    pairs = [(f"An inn {'x' * number}", f"Un han {'x' * number}") for number in range(30)]
    pairs += [("Science is nice", "Știința este frumoasă"), ("My country", "Țară")]
    (tmp_path / "x.tsv").write_text("".join(f"{en}\t{ro}\n" for en, ro in pairs))
    (tmp_path / "flores.ro").write_text("Ştiinţa este frumoasă.\nŢara mea\n")
    source = find_source(str(tmp_path / "x.tsv"), "en", "ro")
    cleaning = Cleaning(exclude=(str(tmp_path / "flores.ro"),))

    report = make_corpus(tmp_path / "out", ("en", "ro"), source, cleaning, HeldOut(1, 1))

    assert report["dropped"] == {"excluded": 1}
    assert "Știința" not in (tmp_path / "out" / "train.ro").read_text()


def test_characters_that_the_model_reads_alike_are_compared_alike(tmp_path, monkeypatch):
    module = "fairseq_lxsr.preparation"
    monkeypatch.setattr(f"{module}.pipeline.require_converter", lambda: None)
    monkeypatch.setattr(f"{module}.subwords.simplified_characters", lambda: "語语們们")
    simplified = [f"我们语 {'x' * number}" for number in range(40)]
    traditional = [f"我們語 {'x' * number}" for number in range(40)]
    for language, lines in (("en", simplified), ("fr", traditional)):
        text = "".join(f"{language} {line[4:]}\t{line}\n" for line in lines)
        (tmp_path / f"{language}.tsv").write_text(text)
    (tmp_path / "test.zh").write_text("我們語 xxx\n")
    config = PrepareConfig(
        pairs={f"{language}-zh": str(tmp_path / f"{language}.tsv") for language in ("en", "fr")},
        work=str(tmp_path / "work"),
        cleaning=Cleaning(exclude=(str(tmp_path / "test.zh"),)),
        subwords=SubwordOptions(simplify_chinese=True),
        workers=1,
    )

    prepare_corpora(config, until="clean")

    corpus = tmp_path / "work" / "corpus"
    held_out = {
        line
        for split in ("valid", "test")
        for line in (corpus / "en-zh" / f"{split}.zh").read_text().splitlines()
    }
    train = (corpus / "fr-zh" / "train.zh").read_text().replace("語", "语").replace("們", "们")
    assert held_out
    assert held_out.isdisjoint(train.splitlines())
    for pair in ("en-zh", "fr-zh"):
        report = json.loads((corpus / pair / "stage.json").read_text())["report"]
        assert report["dropped"]["excluded"] == 1


def test_a_set_of_which_no_sentence_is_in_the_text_is_named(tmp_path, corpus, capsys):
    (tmp_path / "in.txt").write_text(LINES["en"], encoding="utf-8")
    (tmp_path / "out.txt").write_text("Another sentence\n", encoding="utf-8")
    corpus()
    command = ["prepare", "--data", str(tmp_path / "corpus"), "--work", str(tmp_path / "work")]
    command += ["--valid-size", "2", "--test-size", "2", "--workers", "1", "--until", "clean"]
    command += ["--exclude", str(tmp_path / "in.txt"), str(tmp_path / "out.txt")]
    # The second run keeps the corpus.
    for _ in range(2):
        main(command)
        warnings = capsys.readouterr().err
        assert f"--exclude {tmp_path / 'out.txt'}: " in warnings
        assert "in.txt" not in warnings


def test_one_file_of_several_pairs_is_given_once(tmp_path, capsys):
    variant = '<tuv xml:lang="{0}"><seg>{0} {1}</seg></tuv>'
    units = (
        "".join(variant.format(code, "x" * number) for code in ("en", "fr", "de"))
        for number in range(20)
    )
    (tmp_path / "x.tmx").write_text(
        "<tmx>{}</tmx>".format("".join(f"<tu>{unit}</tu>" for unit in units))
    )
    options = [
        "--valid-size",
        "2",
        "--test-size",
        "0",
        "--workers",
        "1",
        "--until",
        "clean",
        "--lang-pairs",
        "en-fr,fr-de",
    ]
    main(["prepare", "--data", str(tmp_path / "x.tmx"), "--work", str(tmp_path / "work"), *options])
    said = capsys.readouterr().out
    assert "en-fr pairs: 18 train, 2 valid" in said
    assert "fr-de pairs: 18 train, 2 valid" in said
    (tmp_path / "x.tsv").write_text("a\tb\n")
    with pytest.raises(SystemExit, match="2"):
        main(
            [
                "prepare",
                "--data",
                str(tmp_path / "x.tsv"),
                "--work",
                str(tmp_path / "work"),
                *options,
            ]
        )
    assert "must contain {pair}" in capsys.readouterr().err
