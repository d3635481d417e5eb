"""Time: engines, events and the cycles of each action."""
