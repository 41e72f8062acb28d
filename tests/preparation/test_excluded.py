"""`--exclude` reads every format of `--data`, and the test sets of WMT; it refuses all other files."""

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

ENGLISH = ("Wait for R&D, please", "See the file 7")
FRENCH = ("Attendez, s'il vous plaît", "Voyez le fichier 7")
PAIRS = list(zip(ENGLISH, FRENCH, strict=True))


def xml(text):
    return text.replace("&", "&amp;")


UNITS = ""
XLIFF = ""
SEGMENTS = ""
CSV = ""
TSV = ""
MESSAGES = ""
OBJECTS = ""
for number, (en, fr) in enumerate(PAIRS):
    UNITS += f'<tu><tuv xml:lang="en"><seg>{xml(en)}</seg></tuv>'
    UNITS += f'<tuv xml:lang="fr"><seg>{xml(fr)}</seg></tuv></tu>'
    XLIFF += f"<trans-unit><source>{xml(en)}</source><target>{xml(fr)}</target></trans-unit>"
    SEGMENTS += f'<seg id="{number}">\n{xml(en)}\n</seg>\n'
    CSV += f'3,"{en}","{fr}"\n'
    TSV += f"{en}\t{fr}\n"
    MESSAGES += f'msgid "{en}"\nmsgstr "{fr}"\n\n'
    OBJECTS += json.dumps({"translation": {"en": en, "fr": fr}}) + "\n"
LINES = {"en": "\n".join(ENGLISH) + "\n", "fr": "\n".join(FRENCH) + "\n"}
# The content of a file by its name.
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
def count_excluded(tmp_path):
    """Makes a corpus with the sentences of `PAIRS`; returns how many pairs `exclude` drops."""
    english = list(ENGLISH)
    french = list(FRENCH)
    for number in range(30):
        english.append(f"This is sentence {'x' * number}")
        french.append(f"Ceci est la phrase {'x' * number}")
    (tmp_path / "corpus.en").write_text("\n".join(english) + "\n", encoding="utf-8")
    (tmp_path / "corpus.fr").write_text("\n".join(french) + "\n", encoding="utf-8")

    def count(*paths):
        cleaning = Cleaning(exclude=tuple(str(path) for path in paths))
        source = find_source(str(tmp_path / "corpus"), "en", "fr")
        report = make_corpus(tmp_path / "made", ("en", "fr"), source, cleaning, HeldOut(2, 2))
        return report["dropped"].get("excluded", 0)

    return count


@pytest.mark.parametrize("name", FILES)
def test_the_sentences_of_every_format_are_excluded(tmp_path, count_excluded, name):
    (tmp_path / name).write_text(FILES[name], encoding="utf-8")
    assert count_excluded(tmp_path / name) == 2
    (tmp_path / f"{name}.bz2").write_bytes(bz2.compress(FILES[name].encode()))
    assert set(ENGLISH) <= set(sentences_to_exclude(tmp_path / f"{name}.bz2"))
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as packed:
        packed.writestr(name, FILES[name])
        packed.writestr("README", "about")
    assert set(ENGLISH) <= set(sentences_to_exclude(tmp_path / "x.zip"))


def test_the_sentences_of_prefixes_and_folders_are_excluded(tmp_path, count_excluded):
    for language, text in LINES.items():
        (tmp_path / f"dev.{language}").write_text(text, encoding="utf-8")
    assert files_to_exclude([str(tmp_path / "dev")], "eng", "fra") == [
        tmp_path / "dev.en",
        tmp_path / "dev.fr",
    ]
    assert count_excluded(tmp_path / "dev") == 2
    write_catalogue(tmp_path / "catalogues" / "fr" / "LC_MESSAGES" / "a.mo", dict(PAIRS))
    assert count_excluded(tmp_path / "catalogues") == 2


@pytest.mark.parametrize("name", ["x.json", "x.html", "page", "x.yaml", "x.docx"])
def test_files_of_other_formats_are_refused(tmp_path, count_excluded, name):
    content = b"<!DOCTYPE html><p>See the file 7</p>"
    if name == "x.docx":
        content = b"PK\x03\x04\xff"
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=rf"/{name}(: |, line 1: )"):
        count_excluded(tmp_path / name)


def test_missing_files_pipes_and_invalid_lines_of_json_are_refused(tmp_path, count_excluded):
    with pytest.raises(InputError, match="missing"):
        count_excluded(tmp_path / "missing.tmx")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe .*pipe"):
        count_excluded(tmp_path / "pipe")
    (tmp_path / "bad.jsonl").write_text('{"en": "a"}\nno JSON\n')
    with pytest.raises(InputError, match=r"bad\.jsonl, line 2: 'no JSON'"):
        count_excluded(tmp_path / "bad.jsonl")


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
def test_a_text_without_readable_sentences_is_refused(
    tmp_path, count_excluded, name, content, place
):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as error:
        count_excluded(tmp_path / name)
    assert name in str(error.value)
    assert place in str(error.value)


def test_a_catalogue_in_utf8_whose_header_names_another_encoding_is_excluded(
    tmp_path, count_excluded
):
    header = "Content-Type: text/plain; charset=ISO-8859-1"
    content = f'msgid ""\nmsgstr "{header}\\n"\n\n'
    content += f'msgid "one"\nmsgstr "{FRENCH[0]}"\n\nmsgid "two"\nmsgstr "{FRENCH[1]}"\n\n'
    (tmp_path / "fr.po").write_text(content, encoding="utf-8")
    assert count_excluded(tmp_path / "fr.po") == 2
    messages = {"": f"{header}\n", "one": FRENCH[0], "two": FRENCH[1]}
    write_catalogue(tmp_path / "fr.mo", messages)
    assert count_excluded(tmp_path / "fr.mo") == 2


@pytest.mark.parametrize(
    "text",
    [
        "".join(f"{en} ||| {fr}\n" for en, fr in PAIRS),
        "Wait for R &amp; D , please\nSee the file 7\n",
        "Attendez , s &apos;il vous plaît\nVoyez le fichier 7\n",
        "Attendez, s&#39;il vous pla&icirc;t\nVoyez le fichier 7\n",
    ],
)
def test_text_in_the_formats_of_moses_is_excluded(tmp_path, count_excluded, text):
    (tmp_path / "x.txt").write_text(text, encoding="utf-8")
    assert count_excluded(tmp_path / "x.txt") == 2


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
    train = (corpus / "fr-zh" / "train.zh").read_text().replace("語", "语").replace("們", "们")
    for split in ("valid", "test"):
        held_out = (corpus / "en-zh" / f"{split}.zh").read_text().splitlines()
        assert held_out
        assert set(held_out).isdisjoint(train.splitlines())
    for pair in ("en-zh", "fr-zh"):
        report = json.loads((corpus / pair / "stage.json").read_text())["report"]
        assert report["dropped"]["excluded"] == 1


def test_an_excluded_file_without_a_sentence_of_the_corpus_is_named(
    tmp_path, count_excluded, capsys
):
    (tmp_path / "in.txt").write_text(LINES["en"], encoding="utf-8")
    (tmp_path / "out.txt").write_text("Another sentence\n", encoding="utf-8")
    count_excluded()
    command = ["prepare", "--data", str(tmp_path / "corpus"), "--work", str(tmp_path / "work")]
    command += ["--valid-size", "2", "--test-size", "2", "--workers", "1", "--until", "clean"]
    command += ["--exclude", str(tmp_path / "in.txt"), str(tmp_path / "out.txt")]
    # The second run keeps the corpus.
    for _ in range(2):
        main(command)
        warnings = capsys.readouterr().err
        assert f"--exclude {tmp_path / 'out.txt'}: " in warnings
        assert "in.txt" not in warnings


def test_one_memory_may_serve_several_language_pairs(tmp_path, capsys):
    with open(tmp_path / "x.tmx", "w") as stream:
        stream.write("<tmx>")
        for number in range(20):
            stream.write("<tu>")
            for code in ("en", "fr", "de"):
                stream.write(f'<tuv xml:lang="{code}"><seg>{code} {"x" * number}</seg></tuv>')
            stream.write("</tu>")
        stream.write("</tmx>")
    command = ["prepare", "--work", str(tmp_path / "work"), "--lang-pairs", "en-fr,fr-de"]
    command += ["--valid-size", "2", "--test-size", "0", "--workers", "1", "--until", "clean"]
    main([*command, "--data", str(tmp_path / "x.tmx")])
    output = capsys.readouterr().out
    assert "en-fr pairs: 18 train, 2 valid" in output
    assert "fr-de pairs: 18 train, 2 valid" in output
    (tmp_path / "x.tsv").write_text("a\tb\n")
    with pytest.raises(SystemExit, match="2"):
        main([*command, "--data", str(tmp_path / "x.tsv")])
    assert "must contain {pair}" in capsys.readouterr().err
