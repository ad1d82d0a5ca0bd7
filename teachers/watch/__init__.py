"""Detectors of extraction in what an account asks, and the watch that carries them. No torch
here.
"""

from dfme.config import detectors

# name -> "module:Class", a ``detector.Detector``
DETECTORS = {
    each: f"dfme.teachers.watch.detectors:{each.capitalize()}Detector"
    for each in detectors.DETECTORS
}
