"""Mining from text files: the pairs of `retrieval.mine`, whatever the interruptions."""

import functools
import itertools
import shutil

import numpy as np
import pytest
from conftest import case
from kills import every_kill

from fairseq_lxsr.embeddings import ByLanguage, StoredEmbeddings
from fairseq_lxsr.errors import InputError
from fairseq_lxsr.files.lines import read_lines
from fairseq_lxsr.search import Mining, Side, mine_files
from fairseq_lxsr.search.bitext import write_pairs
from fairseq_lxsr.vectors import MinedPairs, mine, nearest_neighbours

# What a work folder may have.
WORK_FILES = {
    ".lxsr-work",
    "source.npy",
    "source.npy.json",
    "target.npy",
    "target.npy.json",
    "forward.npy",
    "forward.npy.json",
    "backward.npy",
    "backward.npy.json",
}
WIDTH = 12
# "t 20" to "t 79" are the translations of "s 20" to "s 79".
SOURCE = [f"s {i}" for i in range(80)]
TARGET = [f"t {i}" for i in range(20, 80)]
# One for each of 80 numbers, and others for tests that need more.
VECTORS = np.random.default_rng(0).standard_normal((90, WIDTH)).astype(np.float32)


@functools.cache
def vector(line: str) -> np.ndarray:
    """The embedding of a line. `s 3` and `t 3` lie close to each other."""
    side, number = line.split()
    seed = int(number) + (1000 if side == "t" else 0)
    noise = np.random.default_rng(seed).standard_normal(WIDTH)
    return VECTORS[int(number)] + 0.3 * noise


def vectors(lines):
    return np.stack([vector(line) for line in lines])


class FunctionEncoder:
    """An encoder that calls a function of sentences and their line numbers."""

    def __init__(self, encode, fingerprint="model", width=WIDTH):
        self.encode = encode
        self.fingerprint = fingerprint
        self.width = width

    def embed(self, text, counts=None):
        return np.asarray(self.encode(text.lines, text.rows), dtype=np.float32)


def with_encoder(side, encode, fingerprint="model", width=WIDTH):
    """The same text with another encoder."""
    return Side(side.path, FunctionEncoder(encode, fingerprint, width))


def must_not_encode(lines, rows):
    """Stands for a model that must not be used."""
    pytest.fail("sentences are encoded")


def rows_of(path):
    """The rows of a file of mined pairs: score, source and target."""
    return [line.split("\t") for line in path.read_text(encoding="utf-8").splitlines()]


def sentence_pairs_in(path):
    """The sentences of the pairs in a file, without their scores."""
    return {(source, target) for _, source, target in rows_of(path)}


def pair_ids(mined):
    return set(zip(mined.source.tolist(), mined.target.tolist(), strict=True))


@pytest.fixture
def files(tmp_path):
    """`a.txt`, all of SOURCE with two repetitions and two empty lines, and `b.txt`, TARGET."""
    # A zero width space is no text.
    lines = [SOURCE[0], SOURCE[0], "", *SOURCE[1:], SOURCE[5], "\u200b"]
    (tmp_path / "a.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "b.txt").write_text("\n".join(TARGET) + "\n")

    def encode(lines, rows):
        assert len(lines) == len(rows)
        return vectors(lines)

    encoder = FunctionEncoder(encode)
    return Side(tmp_path / "a.txt", encoder), Side(tmp_path / "b.txt", encoder)


def test_mined_files_have_the_pairs_of_mined_vectors(files, tmp_path):
    mine_files(*files, tmp_path / "out.tsv", tmp_path / "work", Mining(threshold=1.0))

    expected = mine(vectors(SOURCE), vectors(TARGET)).above(1.0)
    rows = rows_of(tmp_path / "out.tsv")
    assert [source for _, source, _ in rows] == [SOURCE[i] for i in expected.source]
    assert [target for _, _, target in rows] == [TARGET[j] for j in expected.target]
    scores = [float(score) for score, _, _ in rows]
    np.testing.assert_allclose(scores, expected.scores, atol=1e-5)


def test_most_mined_pairs_are_translations(files, tmp_path):
    mine_files(*files, tmp_path / "out.tsv", tmp_path / "work", Mining(threshold=1.0))

    # There are 60 translations.
    pairs = sentence_pairs_in(tmp_path / "out.tsv")
    assert len(pairs) > 40
    translations = [pair for pair in pairs if pair[0].split()[1] == pair[1].split()[1]]
    assert len(translations) > 0.9 * len(pairs)


def test_tabs_and_line_ends_in_a_sentence_become_spaces(tmp_path):
    # The pair of the first sentences of both sides, with the score 1.
    pair = MinedPairs(np.ones(1), np.zeros(1, int), np.zeros(1, int))
    source = "a\rb\u2028c"
    target = "d\te\x85 f"

    write_pairs(tmp_path / "out.tsv", pair, [source], [target], ("en", "fr"))

    assert rows_of(tmp_path / "out.tsv") == [["1.000000", "a b c", "d e f"]]


# The sides of each pair have the same letters.
# Untranslated pairs: the sides have the same letters, though not the same digits and punctuation.
COPIES = [("Install Lua.", "install lua"), ("Version 1.2", "Version 1.3"), ("…", "…")]


@pytest.fixture
def files_with_copies(files, tmp_path):
    """Texts that end with the three COPIES, which lie closest to each other."""
    for number, side in enumerate(files):
        lines = side.path.read_text("utf-8").splitlines()
        lines += [copy[number] for copy in COPIES]
        side.path.write_text("\n".join(lines), "utf-8")

    def embed(line):
        for row, copy in enumerate(COPIES):
            if line in copy:
                return VECTORS[80 + row]
        return vector(line)

    def encode(lines, rows):
        return np.stack([embed(line) for line in lines])

    return [with_encoder(side, encode) for side in files]


def test_untranslated_copies_are_left_out_and_counted(files_with_copies, tmp_path, capsys):
    output = tmp_path / "out.tsv"
    all_pairs = mine_files(*files_with_copies, output, None, Mining(keep_identical=True))
    capsys.readouterr()

    pairs = mine_files(*files_with_copies, output, None)

    assert len(pairs) == len(all_pairs) - len(COPIES)
    assert sentence_pairs_in(output).isdisjoint(COPIES)
    assert f"3 of {len(all_pairs)} pairs are identical" in capsys.readouterr().err


def test_untranslated_copies_are_kept_and_not_counted_if_asked_for(
    files_with_copies, tmp_path, capsys
):
    output = tmp_path / "out.tsv"

    mine_files(*files_with_copies, output, None, Mining(keep_identical=True))

    assert sentence_pairs_in(output) >= set(COPIES)
    assert "identical" not in capsys.readouterr().err


def test_untranslated_copies_are_not_among_the_number_of_best_pairs(files_with_copies, tmp_path):
    output = tmp_path / "out.tsv"
    pairs = mine_files(*files_with_copies, output, None)

    best = mine_files(*files_with_copies, output, None, Mining(top=5))

    assert best.source.tolist() == pairs.source[:5].tolist()


def test_untranslated_copies_below_the_threshold_are_not_counted(
    files_with_copies, tmp_path, capsys
):
    # No pair has such a score.
    mine_files(*files_with_copies, tmp_path / "out.tsv", None, Mining(threshold=100.0))

    assert "identical" not in capsys.readouterr().err


def test_within_one_text_pairs_with_the_same_letters_are_mined(files_with_copies, tmp_path):
    """There, they are paraphrases."""
    path = tmp_path / "one.txt"
    # The sides of the third are the same line.
    first, second, _ = COPIES
    path.write_text("\n".join([*SOURCE, *first, *second]))
    encoder = files_with_copies[0].encoder

    mine_files(Side(path, encoder), None, tmp_path / "out.tsv")

    assert sentence_pairs_in(tmp_path / "out.tsv") >= {first, second}


@pytest.mark.parametrize(
    "failing_call",
    # In small blocks, these are calls that encode both sides and calls that find neighbours.
    range(1, 8),
)
def test_an_interrupted_run_is_continued_to_the_same_bytes(
    files, tmp_path, monkeypatch, failing_call
):
    monkeypatch.setattr("fairseq_lxsr.search.bitext.ENCODE_ROWS", 30)
    monkeypatch.setattr("fairseq_lxsr.search.bitext.SEARCH_ROWS", 50)
    mine_files(*files, tmp_path / "whole.tsv", tmp_path / "whole")
    calls = itertools.count(1)

    def failing_once(function):
        def call(*arguments, **options):
            # The error stands for a power cut.
            if next(calls) == failing_call:
                raise ZeroDivisionError
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(
        "fairseq_lxsr.search.bitext.nearest_neighbours", failing_once(nearest_neighbours)
    )
    sides = [with_encoder(side, failing_once(side.encoder.encode)) for side in files]
    output = tmp_path / "out.tsv"
    with pytest.raises(ZeroDivisionError):
        mine_files(*sides, output, tmp_path / "work")
    assert not output.exists()

    mine_files(*sides, output, tmp_path / "work")

    assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes()


@pytest.mark.parametrize(
    "keep_work", [pytest.param(True, marks=pytest.mark.slow), False], ids=["work", "no work"]
)
def test_a_run_killed_before_any_change_of_files_is_continued_to_the_same_bytes(
    files, tmp_path, monkeypatch, keep_work
):
    # Each side is encoded and searched in two blocks.
    monkeypatch.setattr("fairseq_lxsr.search.bitext.ENCODE_ROWS", 50)
    monkeypatch.setattr("fairseq_lxsr.search.bitext.SEARCH_ROWS", 60)
    mine_files(*files, tmp_path / "whole.tsv", None)
    folder = tmp_path / "out"
    output = folder / "out.tsv"
    work = None
    expected_names = {"out.tsv"}
    if keep_work:
        work = folder / "work"
        expected_names = {"out.tsv", "work"}

    kills = 0
    # A run that is killed before its first change of files, then one before its second, ...
    for kills in every_kill(lambda: mine_files(*files, output, work)):
        with case(f"kill {kills}"):
            mine_files(*files, output, work)

            assert output.read_bytes() == (tmp_path / "whole.tsv").read_bytes()
            # Without a work folder, the files of the killed run are removed.
            names = {path.name for path in folder.rglob("*")}
            assert names - WORK_FILES == expected_names
        shutil.rmtree(folder)
    assert kills > 30


@pytest.mark.parametrize(
    "options", [Mining(top=3), Mining(k=2)], ids=["fewer pairs", "fewer neighbours"]
)
def test_a_run_with_other_options_uses_the_vectors_of_the_work_folder(files, tmp_path, options):
    output = tmp_path / "out.tsv"
    work = tmp_path / "work"
    mine_files(*files, output, work)
    sides = [with_encoder(side, must_not_encode) for side in files]

    mined = mine_files(*sides, output, work, options)

    expected = mine_files(*files, output, None, options)
    np.testing.assert_array_equal(mined.source, expected.source)
    np.testing.assert_array_equal(mined.scores, expected.scores)


def test_the_best_pairs_are_the_first_of_all(files, tmp_path):
    all_pairs = mine_files(*files, tmp_path / "out.tsv", None)

    best = mine_files(*files, tmp_path / "out.tsv", None, Mining(top=3))

    assert best.source.tolist() == all_pairs.source[:3].tolist()


def test_the_number_of_neighbours_changes_the_scores(files, tmp_path):
    all_pairs = mine_files(*files, tmp_path / "out.tsv", None)

    with_two_neighbours = mine_files(*files, tmp_path / "out.tsv", None, Mining(k=2))

    assert with_two_neighbours.scores.tolist() != all_pairs.scores.tolist()


@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_an_approximate_search_mines_nearly_the_pairs_of_the_exact_one(files, tmp_path, kind):
    """Both use the same work folder, but not the same neighbours."""

    def mine_kind(name):
        options = Mining(threshold=1.2, kind=name)
        return mine_files(*files, tmp_path / "out.tsv", tmp_path / "work", options)

    exact = mine_kind("flat")
    approximate = mine_kind(kind)

    assert approximate.scores.tolist() != exact.scores.tolist()
    common_pairs = pair_ids(exact) & pair_ids(approximate)
    assert len(common_pairs) > 0.95 * len(exact)
    # Of 60 translations.
    assert len(exact) > 30
    np.testing.assert_allclose(approximate.scores[:20], exact.scores[:20], atol=0.05)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # There are 60 target sentences.
        ("k", 1000),
        ("k", 0),
        ("k", True),
        ("margin", "none"),
        ("retrieval", "none"),
        ("kind", "ivf"),
        ("precision", "none"),
        ("top", True),
        ("top", 1.5),
        ("rerank", None),
        ("threshold", float("nan")),
        ("memory_mb", 0),
        ("memory_mb", True),
        ("entities", "all"),
    ],
)
def test_the_error_for_an_invalid_option_names_it_and_nothing_is_written(
    files, tmp_path, name, value
):
    with pytest.raises(InputError, match=rf"\b{name}\b"):
        mine_files(*files, tmp_path / "out" / "out.tsv", None, Mining(**{name: value}))
    assert not (tmp_path / "out").exists()


def test_options_may_be_numpy_numbers(files, tmp_path):
    options = Mining(k=np.int64(3), top=np.int32(2), threshold=np.float32(0.1))

    mined = mine_files(*files, tmp_path / "out.tsv", None, options)

    assert len(mined) == 2


@pytest.mark.parametrize(
    ("output", "error", "message"),
    [
        pytest.param("folder", InputError, "folder", id="folder"),
        pytest.param("out.tsv.zst", InputError, r"out\.tsv\.zst", id="compressed"),
        pytest.param("a.txt/out.tsv", OSError, r"a\.txt", id="file as folder"),
    ],
)
def test_an_output_that_cannot_be_written_is_refused_before_any_work(
    files, tmp_path, monkeypatch, output, error, message
):
    sides = [with_encoder(side, must_not_encode) for side in files]
    (tmp_path / "folder").mkdir()
    # As if the library that compresses .zst were not installed.
    monkeypatch.setattr(
        "fairseq_lxsr.files.open.importlib.import_module", lambda name: __import__("no_such_module")
    )

    with pytest.raises(error, match=message):
        mine_files(*sides, tmp_path / output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "folder"]


def store_ones(folder, text_path, width):
    """Store an embedding of ones for each line of a text."""
    folder.mkdir(exist_ok=True)
    num_lines = len(list(read_lines(text_path)))
    np.save(folder / f"{text_path.name}.npy", np.ones((num_lines, width)))


@pytest.mark.parametrize("is_by_language", [False, True], ids=["one folder", "by language"])
def test_stored_embeddings_of_two_widths_are_refused_before_any_work(
    files, tmp_path, is_by_language
):
    source_path, target_path = (side.path for side in files)
    if is_by_language:
        store_ones(tmp_path / "en", source_path, 12)
        store_ones(tmp_path / "fr", target_path, 5)
        english = StoredEmbeddings(tmp_path / "en")
        encoder = ByLanguage({"en": english, "fr": StoredEmbeddings(tmp_path / "fr")})
    else:
        store_ones(tmp_path / "both", source_path, 12)
        store_ones(tmp_path / "both", target_path, 5)
        encoder = StoredEmbeddings(tmp_path / "both")
    source = Side(source_path, encoder, "en")
    target = Side(target_path, encoder, "fr")

    with pytest.raises(InputError, match=r"a\.txt\b.*\b12\b.*b\.txt\b.*\b5\b"):
        mine_files(source, target, tmp_path / "out" / "out.tsv")
    assert not (tmp_path / "out").exists()


def test_only_the_text_with_a_changed_encoder_is_encoded_again(files, tmp_path):
    english, french = files
    encoded = []

    def encode_english_with_nan(lines, rows):
        encoded.append(("english with nan", len(lines)))
        vectors = english.encoder.encode(lines, rows)
        # Lines are counted from 1 in messages.
        vectors[rows == 7] = np.nan
        return vectors

    def encode_french(lines, rows):
        encoded.append(("french", len(lines)))
        return french.encoder.encode(lines, rows)

    source = with_encoder(french, encode_french)
    faulty_target = with_encoder(english, encode_english_with_nan, "faulty")
    corrected_target = with_encoder(english, english.encoder.encode, "corrected")
    output = tmp_path / "out.tsv"
    work = tmp_path / "work"
    with pytest.raises(InputError, match=r"a\.txt, line 8: "):
        mine_files(source, faulty_target, output, work)

    mine_files(source, corrected_target, output, work)

    # French was encoded in the first run only.
    assert encoded == [("french", len(TARGET)), ("english with nan", len(SOURCE))]


def test_a_second_run_with_the_same_output_is_refused_and_the_first_completes(files, tmp_path):
    source, target = files

    def encode_during_a_second_run(lines, rows):
        # A single line may be encoded to learn the width, before the run begins.
        if len(lines) > 1:
            with pytest.raises(InputError, match=r"work: .*\(process \d+ on "):
                mine_files(source, target, tmp_path / "out.tsv")
        return source.encoder.encode(lines, rows)

    mine_files(with_encoder(source, encode_during_a_second_run), target, tmp_path / "out.tsv")

    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.txt", "b.txt", "out.tsv"]


def assert_source_is_refused(source, target, folder, message):
    """Check that mining with this source is refused and leaves no work folder."""
    with pytest.raises(InputError, match=message):
        mine_files(source, target, folder / "out.tsv", folder / "work")
    assert not (folder / "work").exists()


def test_a_text_without_known_words_is_refused_and_leaves_no_work_folder(files, tmp_path):
    source, target = files

    def encode_zeros(lines, rows):
        return np.zeros((len(lines), WIDTH))

    message = r"line 1: .*'s 0'"
    assert_source_is_refused(with_encoder(source, encode_zeros), target, tmp_path, message)


def test_texts_with_vectors_of_two_widths_are_refused_and_leave_no_work_folder(files, tmp_path):
    source, target = files

    def encode_narrow(lines, rows):
        return np.ones((len(lines), 3))

    narrow_source = with_encoder(source, encode_narrow, width=3)
    assert_source_is_refused(narrow_source, target, tmp_path, rf"\b3\b.*\b{WIDTH}\b")


def test_a_text_of_empty_lines_is_refused_and_leaves_no_work_folder(files, tmp_path):
    source, target = files
    (tmp_path / "empty.txt").write_text("\n\n")
    empty_source = Side(tmp_path / "empty.txt", source.encoder)

    assert_source_is_refused(empty_source, target, tmp_path, r"empty\.txt: no text")


@pytest.fixture
def one_text(files, tmp_path, monkeypatch):
    """Both sides in `both.txt`, and lines at its end that look like others of the text."""
    # The text is searched in several blocks.
    monkeypatch.setattr("fairseq_lxsr.search.bitext.SEARCH_ROWS", 30)
    path = tmp_path / "both.txt"
    # They differ in spaces and a soft hyphen.
    lines = [*SOURCE, *TARGET, f" {SOURCE[3]}", "s  4", "s\u00ad 5", ""]
    path.write_text("\n".join(lines), encoding="utf-8")
    return Side(path, files[0].encoder)


def test_mining_within_one_text_finds_the_pairs_of_mined_vectors(one_text, tmp_path):
    mined = mine_files(one_text, None, tmp_path / "out.tsv", None, Mining(threshold=1.0))

    expected = mine(vectors([*SOURCE, *TARGET])).above(1.0)
    np.testing.assert_array_equal(mined.source, expected.source)
    np.testing.assert_array_equal(mined.target, expected.target)


def test_within_one_text_each_sentence_is_in_at_most_one_pair(one_text, tmp_path):
    mine_files(one_text, None, tmp_path / "out.tsv", None, Mining(threshold=1.0))

    sentences = []
    for _, source, target in rows_of(tmp_path / "out.tsv"):
        sentences += [source, target]
    assert len(set(sentences)) == len(sentences)
    # More than 40 pairs.
    assert len(sentences) > 80


@pytest.mark.parametrize("name", ["both.txt", "reversed.txt"])
def test_a_text_given_twice_in_any_order_is_mined_as_one(one_text, tmp_path, name):
    options = Mining(threshold=1.0)
    mine_files(one_text, None, tmp_path / "one_side.tsv", None, options)
    (tmp_path / "reversed.txt").write_text("\n".join([*TARGET[::-1], *SOURCE[::-1]]))
    same_text = Side(tmp_path / name, one_text.encoder)

    mine_files(one_text, same_text, tmp_path / "two_sides.tsv", None, options)

    one_side_bytes = (tmp_path / "one_side.tsv").read_bytes()
    assert (tmp_path / "two_sides.tsv").read_bytes() == one_side_bytes


def test_neighbours_of_two_texts_in_a_work_folder_are_not_used_within_one(files, tmp_path):
    source, target = files
    mine_files(source, target, tmp_path / "two.tsv", tmp_path / "work")

    mine_files(source, None, tmp_path / "one.tsv", tmp_path / "work")

    mine_files(source, None, tmp_path / "without_work.tsv")
    assert (tmp_path / "one.tsv").read_bytes() == (tmp_path / "without_work.tsv").read_bytes()


def test_one_text_in_two_languages_is_refused_and_nothing_is_written(files, tmp_path):
    source = files[0]
    in_french = Side(source.path, source.encoder, "fr")

    with pytest.raises(InputError, match=r"a\.txt .*a\.txt"):
        mine_files(source, in_french, tmp_path / "out.tsv")
    assert not list(tmp_path.glob("out*"))


def test_one_text_with_two_models_is_refused_and_nothing_is_written(files, tmp_path):
    source = files[0]
    with_another_model = with_encoder(source, source.encoder.encode, "another")

    with pytest.raises(InputError, match=r"a\.txt .*a\.txt"):
        mine_files(source, with_another_model, tmp_path / "out.tsv")
    assert not list(tmp_path.glob("out*"))


def test_more_neighbours_than_other_lines_are_refused_and_nothing_is_written(files, tmp_path):
    """Within one text, each of the 80 distinct lines has 79 others."""
    with pytest.raises(InputError, match=r"k is 80; .*79"):
        mine_files(files[0], None, tmp_path / "out.tsv", None, Mining(k=80))
    assert not list(tmp_path.glob("out*"))
