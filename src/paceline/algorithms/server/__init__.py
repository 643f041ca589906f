"""The parameter server as pure machines: the desk that leases batches, shards that count versions, gates."""
