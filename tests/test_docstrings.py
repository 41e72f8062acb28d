"""Each public loss and module has an example in its docstring, and the examples run."""

import doctest
import importlib
import inspect
import pkgutil

import torch

import fairseq_lxsr.losses
import fairseq_lxsr.modules

FOLDERS = (fairseq_lxsr.losses, fairseq_lxsr.modules)


def test_examples_run():
    for folder in FOLDERS:
        for info in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            module = importlib.import_module(info.name)
            results = doctest.testmod(module, extraglobs={"torch": torch})
            assert results.failed == 0, info.name


def test_every_public_name_has_an_example():
    for folder in FOLDERS:
        for name in folder.__all__:
            value = getattr(folder, name)
            if inspect.getdoc(value) and callable(value):
                assert ">>>" in inspect.getdoc(value), name
