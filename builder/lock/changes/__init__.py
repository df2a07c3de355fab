"""What changes about locks and recipes: drift since then, differences, newer versions."""
