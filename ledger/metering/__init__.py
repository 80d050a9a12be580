"""Metrics: declared once, counted in plain numbers where things happen, read when somebody asks.

    declaration   what a metric is; counters, histograms, what is open and shown in this process
    collector     the same as samples of prometheus-client, which nothing else here imports
    http_server   /metrics, /healthz and /readyz over HTTP

A package declares its own in its module `metrics`. Another one takes two places: there, and where
it is counted.
"""
