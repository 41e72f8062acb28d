"""A sample of the campaign of damaged files."""

import random

import pytest
from attack_damage import Campaign


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    return Campaign(tmp_path_factory.mktemp("damage") / "campaign")


@pytest.mark.slow
def test_damaged_files_are_refused_or_give_the_same_result(campaign):
    random_numbers = random.Random(3)
    for _ in range(25):
        problem = campaign.try_one(random_numbers)
        assert problem is None, problem
    assert campaign.counts["refused"] > 5
