"""Does speculation pay for this traffic, where, and how sure is that? Load matrix, verdicts, report."""
