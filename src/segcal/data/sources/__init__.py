"""Data sets that `segcal prepare` can read: one module each, and the registry of their names."""

from segcal.data.sources.base import Source
from segcal.registry import Registry

SOURCES: Registry[type[Source]] = Registry(
    "source",
    "segcal.sources",
    lambda thing: isinstance(thing, type) and issubclass(thing, Source),
    "a subclass of segcal.data.Source",
)
SOURCES.register("acdc", "segcal.data.sources.acdc:AcdcSource")
SOURCES.register("flare", "segcal.data.sources.flare:FlareSource")
SOURCES.register("brats", "segcal.data.sources.brats:BratsSource")
SOURCES.register("msd", "segcal.data.sources.msd:MsdSource")
SOURCES.register("folder", "segcal.data.sources.folder:FolderSource")
SOURCES.register("phantom", "segcal.data.sources.phantom:PhantomSource")
