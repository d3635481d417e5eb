"""The device: what an instruction does to the bytes of its memories."""
