"""What turns a Plan into an image."""
