"""Planning: how a unit is cut, and what it then costs in bytes and cycles."""
