"""Docstrings of losses and modules: each public one says how it is used, and what it says runs."""

import doctest
import importlib
import inspect
import pkgutil

import pytest
import torch

import fairseq_lxsr.losses
import fairseq_lxsr.modules

ROOMS = fairseq_lxsr.losses, fairseq_lxsr.modules
MODULES = [
    name.name for room in ROOMS for name in pkgutil.iter_modules(room.__path__, f"{room.__name__}.")
]
PUBLIC = {name: getattr(room, name) for room in ROOMS for name in room.__all__}


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    module = importlib.import_module(name)
    assert not doctest.testmod(module, extraglobs={"torch": torch}).failed


@pytest.mark.parametrize(
    "name", [name for name, value in PUBLIC.items() if inspect.getdoc(value) and callable(value)]
)
def test_every_public_name_has_an_example(name):
    assert ">>>" in inspect.getdoc(PUBLIC[name])
