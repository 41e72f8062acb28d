"""The configurations of the runs in quality.yaml."""


def resolve(configs: dict, name: str) -> dict:
    """Return the configuration of a run, with the entries of the run that it is `like`.

    Its `options` follow those of every phase of the other run. Its `training` and `loss` replace
    single entries.
    """
    config = configs[name]
    if "like" not in config:
        return config
    base = resolve(configs, config["like"])
    merged = base | config
    for key in ("training", "loss"):
        if key in base and key in config:
            merged[key] = base[key] | config[key]
    if "phases" in base:
        options = config.get("options", "")
        merged["phases"] = [
            phase | {"options": f"{phase.get('options', '')} {options}"} for phase in base["phases"]
        ]
    return merged
