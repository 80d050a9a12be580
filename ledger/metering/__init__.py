"""Metrics: declared once, counted in plain numbers where things happen, read when somebody asks.

    declaring    what a metric is; counters, histograms, what is open in this process
    exposing     what a process shows of itself
    collecting   the same as samples of prometheus-client, which nothing else here imports
    serving      /metrics, /healthz and /readyz over HTTP

A package declares its own in its module `metrics`. Another one takes two places: there, and where
it is counted.
"""
