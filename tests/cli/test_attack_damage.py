"""Damage of every file that we read back: a sample of the campaign, and `lxsr verify` of each
kind.
"""

import random
import shutil

import pytest
from attack_damage import BESIDE, Campaign, spoilt
from conftest import COMPATIBILITY, lxsr_here, refused

from fairseq_lxsr.cli.verify import verified


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    return Campaign(tmp_path_factory.mktemp("damage") / "campaign")


@pytest.mark.slow
def test_damaged_files_are_refused_or_made_again(campaign):
    draw = random.Random(3)
    wrong = [found for _ in range(25) if (found := campaign.try_one(draw))]
    assert not wrong, "\n".join(wrong)
    assert campaign.counts["refused"] > 5


@pytest.mark.parametrize("name", ["m", "i", "i2", "e", "k", "c", "r", "w"])
def test_verify_names_each_damaged_file(campaign, tmp_path, name):
    folder, draw = shutil.copytree(campaign.folder / name, tmp_path / name), random.Random(5)
    assert f"{folder}: " in lxsr_here("verify", folder).stdout
    for path in sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name not in BESIDE
    ):
        content, found = path.read_bytes(), 0
        if not content:
            continue
        for kind in (
            bytes([content[0] ^ 1]) + content[1:],
            content[:-1],
            b"",
            spoilt(content, draw),
        ):
            path.write_bytes(kind)
            done = lxsr_here("verify", folder, check=False)
            if done.returncode:
                refused(done, f"{folder}: ")
                assert str(path) in done.stdout or path.suffix in (".json", ".progress")
                found += 1
        assert found >= 3 or path.name.endswith(".txt.json"), path
        path.write_bytes(content)


def test_verify_of_what_has_no_checksum(tmp_path):
    (tmp_path / "notes.txt").write_text("a dog")
    refused(lxsr_here("verify", tmp_path, check=False), f"{tmp_path}: ")
    refused(lxsr_here("verify", tmp_path / "none", check=False), "none: ")


def test_portuguese_text_is_no_checkpoint(tmp_path):
    """Language code and suffix of checkpoints are the same; a damaged checkpoint is still found by
    its name.
    """
    (tmp_path / "train.pt").write_text("Bom dia.\n")
    assert list(verified(tmp_path / "train.pt")) == []
    for name, content in (("checkpoint_best.pt", b"Bom dia"), ("model.pt", b"PK\3\4, cut off")):
        (tmp_path / name).write_bytes(content)
        (found,) = verified(tmp_path / name)
        assert found[0].name == name
        assert found[1]


def test_verify_leaves_other_programs_json_alone(tmp_path):
    """Lines of a corpus, and JSON with the names of fields that ours has."""
    others = {
        "corpus.jsonl": '{"source": "a", "target": "b"}\n\nnone\n',
        "pairs.jsonl": '["a", "b"]\n',
        "a.json": '{"settings": 1, "counts": [], "text": 1}',
        "b.json": '{"settings": {}, "counts": [], "text": 1}',
    }
    for name, content in others.items():
        (tmp_path / name).write_text(content)
    refused(lxsr_here("verify", tmp_path, check=False), f"{tmp_path}: ")
    model = COMPATIBILITY / "best.model"
    refused(
        lxsr_here("verify", model, tmp_path / "a.json", check=False),
        "a.json: ",
    )
    (tmp_path / "shards.json").write_text('{"shards": [{"name": "/abs/x"}]}')
    done = lxsr_here("verify", tmp_path, check=False)
    refused(done, tmp_path)
    assert "/abs/x: " in done.stdout


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("api.jsonl", '{"id": 1, "signature": "def f()"}\n\n'),
        ("es.json", '{"shards": [{"name": "part-0"}, {"id": "3"}]}'),
        ("pack-1.idx", "\xfftOc"),
    ],
)
def test_files_of_other_programs_are_left_alone(tmp_path, name, content):
    (tmp_path / "pack-1.pack").write_text("PACK")
    (tmp_path / name).write_text(content, encoding="latin-1")
    assert list(verified(tmp_path / name)) == []
