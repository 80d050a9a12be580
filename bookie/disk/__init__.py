"""Disks: the port to one, a bookie's directories, open files, free space."""
