"""The simulator of logs: the production drivers of every floor on simulated event loops."""
