"""Layers as named axes: ranges that tensors and layers share, how one leads to positions of the other, and networks of
such layers.  Knows no operation of any dialect."""
