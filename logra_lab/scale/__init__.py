"""More than one process: data parallel, sharded weights, and rollout workers fed by packets."""
