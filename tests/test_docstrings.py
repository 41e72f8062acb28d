"""Each public loss and module has an example in its docstring, and the examples run."""

import doctest
import importlib
import inspect
import pkgutil

import torch

import fairseq_lxsr.losses
import fairseq_lxsr.modules

FOLDERS = (fairseq_lxsr.losses, fairseq_lxsr.modules)


def test_the_examples_in_docstrings_of_losses_and_modules_have_the_output_that_they_show():
    for folder in FOLDERS:
        for info in pkgutil.iter_modules(folder.__path__, f"{folder.__name__}."):
            module = importlib.import_module(info.name)
            results = doctest.testmod(module, extraglobs={"torch": torch})
            assert results.failed == 0, info.name


def test_the_docstring_of_every_public_loss_and_module_has_an_example():
    for folder in FOLDERS:
        for name in folder.__all__:
            value = getattr(folder, name)
            docstring = inspect.getdoc(value)
            if callable(value) and docstring:
                assert ">>>" in docstring, name
