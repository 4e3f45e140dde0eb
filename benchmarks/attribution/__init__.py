"""What attribution costs."""
