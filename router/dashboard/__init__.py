"""The web dashboard: a page without data, its files, and what a browser may do with them."""
