from dfme.cli import main

raise SystemExit(main())
