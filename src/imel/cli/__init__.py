"""The command line: `imel train`, `imel eval`, `imel plot` and what they share."""
