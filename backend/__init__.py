"""What is fixed: addresses, order, bytes, and the pipeline that leads there."""
