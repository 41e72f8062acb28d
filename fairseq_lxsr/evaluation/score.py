"""A score and the signature that tells whether two of them can be compared."""

from dataclasses import dataclass, field
from typing import Any

from fairseq_lxsr import __version__


@dataclass(frozen=True)
class Score:
    """Named values of one protocol, in percent unless the name says otherwise.

    `settings` is everything that changes the values: two scores with the same signature were measured alike.
    """

    protocol: str
    values: dict[str, float]
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def signature(self) -> str:
        """One line, for example `xsr|metric:nn|queries:2000|...|version:0.1.0`."""
        settings = self.settings | {"version": __version__}
        return "|".join([self.protocol, *(f"{name}:{value}" for name, value in settings.items())])

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "protocol": self.protocol,
            "values": self.values,
            "settings": self.settings,
            "signature": self.signature,
        }
