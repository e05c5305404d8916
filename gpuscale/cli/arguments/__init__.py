"""What each command takes, one module a command; nothing here imports more than argparse.

A parser names the function that runs its command in its default for `run`, as `module:function`:
the function's module is imported only when the command runs.
"""
