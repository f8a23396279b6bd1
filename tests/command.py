"""The `trivet` command as a user runs it."""

import subprocess
import sys


def trivet(*args, stdin=""):
    return subprocess.run(
        [sys.executable, "-m", "trivet.cli.main", *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
    )


def ok(*args, stdin=""):
    done = trivet(*args, stdin=stdin)
    assert done.returncode == 0, done.stderr
    return done.stdout
