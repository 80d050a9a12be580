"""What `dlog debug bundle` does: gathers what a report of trouble needs, without secrets."""
