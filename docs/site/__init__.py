"""Makes the site: `make docs`.

The pages are the documents of this folder. To them come pages that are made of the code, each
time anew and never by hand: commands, settings, errors, API. What is not a document and is linked
from one becomes a page that shows it. Sphinx makes HTML of all; it is asked to take any warning
for an error, and what it wrote is searched for links that lead nowhere.
"""
