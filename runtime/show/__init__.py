"""What draws a run: the page of `--html`, and the figures behind its pictures."""
