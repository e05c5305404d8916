"""Imported by the fork server before it forks ranks; importing it ties the server to its parent.

A rank inherits the write end of the pipe by which a fork server notices its parent's death,
so a fork server with ranks would outlive a killed pytest, and the ranks with it.
"""

from gpuscale.worker.lifeline import die_with_parent

die_with_parent()
