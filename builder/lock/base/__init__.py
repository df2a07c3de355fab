"""The base of an image: which one it is, what it holds, and what is known of it."""
