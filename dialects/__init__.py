"""What is: the machine, the arithmetic of regions, and the operations of all three levels."""
