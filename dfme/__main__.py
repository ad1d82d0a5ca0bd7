"""``python -m dfme`` is ``python run.py``."""

from dfme.cli.main import main

raise SystemExit(main())
