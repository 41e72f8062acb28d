"""Stands in for config.py of the released lightweight model: the settings that benchmarks read."""

from types import SimpleNamespace


class Config(SimpleNamespace):
    def set_config(self, model_name):
        self.model_name = model_name


config = Config(max_seq_len=200, learning_rate=1e-3, weight_decay=1e-5, lr_decay_from=3)
