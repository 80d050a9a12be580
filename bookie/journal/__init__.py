"""The journal: what a bookie has promised, durable before it says so, replayed after a crash."""
