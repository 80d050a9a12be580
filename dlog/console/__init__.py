"""A cluster in the browser: pages rendered here, looked at by a few people at once.

    series, wording, drawing   numbers over time, and how they are written and drawn; pure
    seen                       what was seen of the cluster, and what has happened since; pure
    gathering                  one poller for all browsers, bounded, with deadlines
    views                      what each page says, made of what was seen; pure
    guarding                   who may ask, from where, and what a browser is told to allow; pure
    reading                    records of one page
    streaming                  server-sent events: pages that stay new, tails, searches, checks
    pages                      addresses
    serving                    the server that all of it runs in

Only `poller`, `reading` and `event_stream` ask the cluster; nothing changes it. Templates print
and decide nothing. Needs the extra `console`.
"""
