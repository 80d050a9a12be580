"""The documents, and `docs.site`, which makes a site of them."""
