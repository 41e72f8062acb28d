"""The door of `fairseq-train --user-dir`: fairseq imports every module of this folder, this one all of the families."""

import importlib
import pkgutil

from fairseq_lxsr.training import adam, context, laser, lightweight, mends  # noqa: F401

for family in (context, laser, lightweight):
    for module in pkgutil.iter_modules(family.__path__, f"{family.__name__}."):
        importlib.import_module(module.name)
