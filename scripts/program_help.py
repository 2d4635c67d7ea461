# SPDX-License-Identifier: MIT
"""What a program says of its flags."""
import os
import subprocess

# Nothing that depends on a terminal.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "TERM")} | {"NO_COLOR": "1"}


def help_of(*command):
    """Of a program, or of one of its commands: every flag, where there is more than one screen; "" where it has no help."""
    for topic in (["all"], []):
        said = subprocess.run([*map(str, command), "--help", *topic], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
                              check=False, env=ENVIRONMENT)
        if said.returncode == 0:
            return said.stdout
    return ""
