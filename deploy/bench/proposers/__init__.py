"""`make bench-proposers`: what does each proposer bring, beside the baseline on the same engine?"""
