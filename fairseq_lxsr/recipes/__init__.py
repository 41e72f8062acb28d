"""Complete training recipes by name: one YAML file for each, and its fairseq-train command."""

from fairseq_lxsr.recipes.command import train_command
from fairseq_lxsr.recipes.recipe import Recipe, names, read_recipe, table

__all__ = ["Recipe", "names", "read_recipe", "table", "train_command"]
