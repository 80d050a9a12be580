"""Other systems, started as what dlog is measured beside: from Maven Central, on this machine."""
