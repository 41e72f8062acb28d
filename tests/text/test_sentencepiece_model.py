"""SentencePiece model files are read as by the library protobuf, and extended."""

import io

import pytest
import sentencepiece
import toy

from fairseq_lxsr.text.sentencepiece_model import (
    BPE,
    NORMAL,
    Piece,
    read_sentencepiece,
    with_pieces,
)

BPE_OPTIONS = {"model_type": "bpe", "vocab_size": 80}
# Training options of models whose files differ in the fields that are read.
TRAINING_OPTIONS = {
    "bpe": BPE_OPTIONS,
    "user symbol": {
        "model_type": "unigram",
        "vocab_size": 80,
        "user_defined_symbols": ["<x>"],
    },
    # 256 of the pieces are bytes.
    "bytes": {"model_type": "unigram", "vocab_size": 340, "byte_fallback": True},
    "no charsmap and no mark before the first word": {
        **BPE_OPTIONS,
        "normalization_rule_name": "identity",
        "add_dummy_prefix": False,
    },
    "words": {"model_type": "word", "vocab_size": 20},
}


def train_model(**options) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.Train(
        sentence_iterator=iter(toy.lines(200)), model_writer=model, minloglevel=2, **options
    )
    return model.getvalue()


@pytest.mark.parametrize("name", TRAINING_OPTIONS)
def test_the_fields_of_a_model_are_those_that_protobuf_reads(name):
    proto = pytest.importorskip("sentencepiece.sentencepiece_model_pb2").ModelProto()
    content = train_model(**TRAINING_OPTIONS[name])
    proto.ParseFromString(content)

    model = read_sentencepiece(content)

    for piece, expected in zip(model.pieces, proto.pieces, strict=True):
        assert piece.text == expected.piece
        assert piece.score == expected.score
        assert piece.type == expected.type
    trainer = proto.trainer_spec
    normalizer = proto.normalizer_spec
    assert model.kind == trainer.model_type
    assert model.byte_fallback == trainer.byte_fallback
    assert model.charsmap == normalizer.precompiled_charsmap
    # Whether spaces are handled in the default way.
    assert model.plain == (
        normalizer.add_dummy_prefix
        and normalizer.remove_extra_whitespaces
        and normalizer.escape_whitespaces
        and not trainer.treat_whitespace_as_suffix
    )


# A usual piece, and one of another type whose length takes two bytes in the file.
USER_DEFINED = 4
NEW_PIECES = [
    Piece("ж", score=-1000.0, type=NORMAL),
    Piece("▁" + 100 * "že", score=-1001.0, type=USER_DEFINED),
]


def test_the_file_of_an_extended_model_is_the_old_file_with_new_pieces_at_its_end():
    content = train_model(**BPE_OPTIONS)

    extended_content = with_pieces(content, NEW_PIECES)

    assert extended_content.startswith(content)
    model = read_sentencepiece(content)
    extended_model = read_sentencepiece(extended_content)
    assert extended_model.pieces == model.pieces + NEW_PIECES
    assert extended_model.kind == model.kind == BPE


def test_sentencepiece_uses_the_pieces_appended_to_a_model():
    content = with_pieces(train_model(**BPE_OPTIONS), NEW_PIECES)

    processor = sentencepiece.SentencePieceProcessor(model_proto=content)

    first_new_id = BPE_OPTIONS["vocab_size"]
    assert processor.IdToPiece(first_new_id) == "ж"
    assert processor.GetScore(first_new_id + 1) == -1001.0
    assert processor.EncodeAsIds("žж")[-1] == first_new_id
