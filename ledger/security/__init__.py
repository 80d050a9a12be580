"""Who is at the other end of a connection, and who listens in: TLS with certificates of both ends.

What is decided is pure (`settings`, `names`); `certificates` reads the files.
"""
