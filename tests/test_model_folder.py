"""What a model folder must be to be read, without training one."""

import pytest
import small_model

from fairseq_lxsr import SentenceEncoder


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A folder of random weights; tests spoil copies of it."""
    return small_model.write_folder(tmp_path_factory.mktemp("small") / "model")


def test_a_folder_that_a_kill_left_under_its_hidden_name_is_found(tmp_path):
    small_model.write_folder(tmp_path / "model").rename(tmp_path / ".model.machine.7.x.old")
    assert SentenceEncoder.from_pretrained(tmp_path / "model").embed_dim == 16
