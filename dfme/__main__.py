"""``python -m dfme`` is ``python run.py``."""

from dfme.cli import main

raise SystemExit(main())
