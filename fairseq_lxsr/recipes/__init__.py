"""Complete training recipes by name: a YAML file each, and the fairseq-train command that it stands for."""

from fairseq_lxsr.recipes.command import train_command
from fairseq_lxsr.recipes.recipe import Recipe, names, read_recipe, table

__all__ = ["Recipe", "names", "read_recipe", "table", "train_command"]
