"""The command line: one file per verb. Nothing outside this folder knows how it was called."""
