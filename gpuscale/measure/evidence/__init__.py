"""Evidence of a node, which `node_meter` takes, and of the software on it.

Nothing here imports torch or touches CUDA, since the keeper forks ranks that do. What is read from
`/proc` and `/sys` is read below a `root`, so that a tree of files can stand in for a machine.
"""
