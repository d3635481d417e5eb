"""The commands of `frustum`, one file each: `main(options)` does the work and gives the exit code."""
