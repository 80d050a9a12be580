"""A role that says what it is told to, and fails if told so."""

import sys

from dlog.demo.roles import Role

if __name__ == "__main__":
    role = Role()
    print("chatter of a library", flush=True)
    role.say("ready", number=int(sys.argv[1]))
    word = role.hear()
    if word == "fail":
        sys.exit("told to fail")
    role.say("heard", word=word)
