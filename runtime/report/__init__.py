"""What a run is said to have done: counters, flows, the report, its text."""
