"""segcal: segmentation networks whose confidence can be trusted.

Importing this package costs nothing: its rooms (and torch with them) load on first use.
"""

import importlib
from types import ModuleType

__version__ = "0.1.0.dev0"

_ROOMS = (
    "benchmark", "config", "data", "evaluation", "integrations", "losses", "metrics", "models",
    "posthoc", "priors", "report", "training",
)  # fmt: skip

__all__ = ["__version__", *_ROOMS]


def __getattr__(name: str) -> ModuleType:
    if name in _ROOMS:
        return importlib.import_module(f"segcal.{name}")
    raise AttributeError(f"module 'segcal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
