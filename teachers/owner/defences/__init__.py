"""Defences of a teacher's answers; ``dfme.config.defences`` has options and facts. No torch."""

from dfme.config import defences

_CLASSES = {
    "modelguard_s": "kinds:CentroidDefence",
    "misinform": "kinds:MisinformDefence",
    "noise": "kinds:NoiseDefence",
    "watermark": "kinds:WatermarkDefence",
    "quota": "kinds:QuotaDefence",
    "pow": "kinds:WorkDefence",
}
"""The defences that are more than the map of their name in ``dfme.answers.maps``."""

# name -> "module:Class", a ``kinds.Defence``
DEFENCES = {
    name: f"dfme.teachers.owner.defences.{_CLASSES.get(name, 'kinds:MapDefence')}"
    for name in defences.DEFENCES
}
CUSTOM = "dfme.teachers.owner.defences.kinds:CustomDefence"
