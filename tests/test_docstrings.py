"""Docstrings of losses and modules: each public one says how it is used, and what it says runs."""

import doctest
import importlib
import inspect
import pkgutil

import torch

import fairseq_lxsr.losses
import fairseq_lxsr.modules

ROOMS = fairseq_lxsr.losses, fairseq_lxsr.modules
MODULES = [
    name.name for room in ROOMS for name in pkgutil.iter_modules(room.__path__, f"{room.__name__}.")
]
PUBLIC = {name: getattr(room, name) for room in ROOMS for name in room.__all__}


def test_examples_run():
    for name in MODULES:
        module = importlib.import_module(name)
        assert not doctest.testmod(module, extraglobs={"torch": torch}).failed, name


def test_every_public_name_has_an_example():
    for name, value in PUBLIC.items():
        if inspect.getdoc(value) and callable(value):
            assert ">>>" in inspect.getdoc(value), name
