"""Detectors of extraction in what one account asks, or all accounts together, and the watch that
carries them. No torch here.
"""

from dfme.config import defences

# name -> "module:Class", a ``detector.Detector``
OF_ALL_TRAFFIC = {"mmd": "dfme.teachers.owner.watch.traffic:MmdDetector"}
DETECTORS = {
    name: OF_ALL_TRAFFIC.get(
        name, f"dfme.teachers.owner.watch.detectors:{name.capitalize()}Detector"
    )
    for name in defences.DETECTORS
}
