"""`python -m imel`: the same as the command `imel`."""

from imel.cli.main import main

raise SystemExit(main())
