"""`make bench-draft-ahead`: how often is the next draft ready when its verdict comes, and what time does that hide?"""
