"""What computes stream between DRAM and SRAM: loops over slices, and outputs that several layers make together."""
