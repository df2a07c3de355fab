"""Recipe and target in, lock out: what goes into the image, every file by hash."""
