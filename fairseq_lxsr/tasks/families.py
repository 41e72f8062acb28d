"""Entry point of `fairseq-train --user-dir`. Importing this module imports all of `training`."""

import importlib
import pkgutil

from fairseq_lxsr import training

for module in pkgutil.walk_packages(training.__path__, f"{training.__name__}."):
    importlib.import_module(module.name)
