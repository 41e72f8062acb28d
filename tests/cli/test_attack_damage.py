"""A sample of the campaign of damaged files."""

import random

import pytest
from attack_damage import Campaign


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    """Damages a file of a model, an index or other input, and repeats a command that reads it."""
    return Campaign(tmp_path_factory.mktemp("damage") / "campaign")


@pytest.mark.slow
def test_commands_refuse_damaged_files_or_have_the_same_result_as_before(campaign):
    random_numbers = random.Random(3)

    for _ in range(25):
        problem = campaign.try_one(random_numbers)
        assert problem is None, problem

    # Otherwise, hardly any damage would have hit what a command reads.
    assert campaign.counts["refused"] > 5
