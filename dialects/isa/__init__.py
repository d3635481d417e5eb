"""The instructions of the machine: one file per engine family, bit fields declared once."""
