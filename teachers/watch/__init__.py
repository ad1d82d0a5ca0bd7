"""Detectors of extraction in what an account asks, and the watch that carries them. No torch here."""

_FILES = {
    "near": ("Prada", "Duplicates", "Pairs"),
    "drift": ("Labels", "Scores", "Mahalanobis", "Sequential", "Sprt"),
}

# name -> "module:Class", a ``detector.Detector``; ``dfme.config.watch_texts`` names them for options
DETECTORS = {each.lower(): f"dfme.teachers.watch.{file}:{each}" for file, classes in _FILES.items() for each in classes}
