"""Training with fairseq. Importing anything of it registers all tasks, models and criterions."""

import importlib
import pkgutil

for module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(module.name)
