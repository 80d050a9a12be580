"""The decisions of the Kafka gateway: no clock, no I/O, no asyncio."""
