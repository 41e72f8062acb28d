"""What the runs of quality.yaml are."""


def resolve(configs: dict, name: str) -> dict:
    """The config of a run; one with `like` is that of another with its own entries.

    Its `options` come after those of every phase, and its `training` and `loss` replace entries of
    the other's.
    """
    config = configs[name]
    if "like" not in config:
        return config
    base = resolve(configs, config["like"])
    merged = (
        base
        | config
        | {
            key: base[key] | config[key]
            for key in ("training", "loss")
            if key in base and key in config
        }
    )
    if "phases" not in base:
        return merged
    more = config.get("options", "")
    return merged | {
        "phases": [
            phase | {"options": f"{phase.get('options', '')} {more}"} for phase in base["phases"]
        ]
    }
