"""Detectors of extraction in what one account asks, or all accounts together, and the watch that
carries them. No torch here.
"""

from dfme.config import defences

OWN_FILES = {"mmd": "dfme.teachers.owner.watch.traffic:MmdDetector"}
# name -> "module:Class", a ``detector.Detector``
DETECTORS = {
    name: OWN_FILES.get(name, f"dfme.teachers.owner.watch.detectors:{name.capitalize()}Detector")
    for name in defences.DETECTORS
}
