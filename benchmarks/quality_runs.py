"""What the runs of benchmarks/quality.yaml are."""


def resolve(configs: dict, name: str) -> dict:
    """The config of a run; one with `like` is that of another, with its own `options` after the last phase's."""
    config = configs[name]
    if "like" not in config:
        return config
    base = resolve(configs, config["like"])
    *before, last = base["phases"]
    last = last | {"options": f"{last.get('options', '')} {config.get('options', '')}"}
    return base | config | {"phases": [*before, last]}
