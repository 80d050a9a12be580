"""A role that leaves a process behind in a group of its own, as Spark does."""

import subprocess
import sys

from dlog.demo.roles import Role

if __name__ == "__main__":
    role = Role()
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    child = subprocess.Popen(command, start_new_session=True)
    role.say("left", child=child.pid)
    role.hear()
