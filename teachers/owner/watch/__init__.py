"""Detectors of extraction in what an account asks, and the watch that carries them. No torch
here.
"""

from dfme.config import defences

# name -> "module:Class", a ``detector.Detector``
DETECTORS = {
    name: f"dfme.teachers.owner.watch.detectors:{name.capitalize()}Detector"
    for name in defences.DETECTORS
}
