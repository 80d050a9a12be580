"""Speaks Kafka's protocol: a topic is logs, a batch is an entry, a gateway is a broker.

Needs the extra ``kafka``. `protocol` decides and is pure; everything else here is I/O.

    wire, listener      frames of Kafka's protocol, the connections that they come by
    gateway             one broker: which request goes where
    topics, membership  which logs a topic has, which gateway leads which log
    partition           one log that this gateway leads
    coordinator         groups of consumers whose offsets log this gateway leads
"""
