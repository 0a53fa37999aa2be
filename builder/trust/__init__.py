"""What somebody other than the builder can find out about an image or a running container."""
