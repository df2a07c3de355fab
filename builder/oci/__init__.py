"""Images as bytes: layers, manifests, layouts. What is in them is decided elsewhere."""
