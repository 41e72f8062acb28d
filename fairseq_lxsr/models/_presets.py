"""Named sizes: `--arch NAME` stands for option values."""

from fairseq.models import register_model_architecture
from omegaconf import DictConfig, open_dict


def register_presets(model: str, presets: dict[str, dict[str, int]]) -> None:
    """Make `--arch NAME` stand for option values of `model`; options given on the command line win."""
    for arch, preset in presets.items():
        _register_preset(model, arch, preset)


def _register_preset(model: str, arch: str, preset: dict[str, int]) -> None:
    @register_model_architecture(model, arch)
    def fill_in(cfg) -> None:
        if isinstance(cfg, DictConfig):
            with open_dict(cfg):
                cfg.update({name: value for name, value in preset.items() if name not in cfg})
        else:
            for name, value in preset.items():
                vars(cfg).setdefault(name, value)
