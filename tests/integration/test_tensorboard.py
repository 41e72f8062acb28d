"""fairseq's --tensorboard-logdir shows every term of the loss."""

import struct

import pytest
from conftest import train


def events(path):
    """Yield the messages of an event file.

    A record has a length of 8 bytes, a checksum of 4, the message, and a checksum of 4.
    """
    from tensorboardX.proto.event_pb2 import Event

    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield Event.FromString(data[12 : 12 + length])
        data = data[16 + length :]


@pytest.mark.slow
def test_all_terms_of_the_loss_reach_tensorboard_in_training_and_validation(toy_work, tmp_path):
    pytest.importorskip("tensorboardX")
    board = tmp_path / "board"
    flags = ("--no-save", "--tensorboard-logdir", board)

    train(toy_work / "data-bin", tmp_path / "save", *flags, max_epoch="1", log_interval="5")

    for kind in ("train_inner", "valid"):
        tags = set()
        for path in (board / kind).iterdir():
            for event in events(path):
                tags.update(value.tag for value in event.summary.value)
        assert {"loss", "gen", "align", "sim", "accuracy"} <= tags
