"""Evidence of a node, collected by `node_meter`, and of the software on it.

Nothing here imports torch or touches CUDA, since the keeper forks ranks that do. Paths below
`/proc` and `/sys` are relative to a `root`, so that tests can replace them by a tree of files.
"""
