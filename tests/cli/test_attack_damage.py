"""Damage of every file that we read back: a sample of the campaign."""

import random

import pytest
from attack_damage import Campaign


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    return Campaign(tmp_path_factory.mktemp("damage") / "campaign")


@pytest.mark.slow
def test_damaged_files_are_refused_or_made_again(campaign):
    draw = random.Random(3)
    wrong = [found for _ in range(25) if (found := campaign.try_one(draw))]
    assert not wrong, "\n".join(wrong)
    assert campaign.counts["refused"] > 5
