from dfme.cli.main import main

raise SystemExit(main())
