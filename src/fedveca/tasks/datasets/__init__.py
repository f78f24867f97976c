"""The data sets that can be named, one file each: what is decorated with @dataset in a file here is found."""

import importlib
import pkgutil

from fedveca.tasks.datasets.dataset import DATASETS

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

_entries = sorted(DATASETS.items())
DATASETS.clear()
DATASETS.update(_entries)  # by name, whoever imported whom
