"""What models need of an image: region noise, two objects, and one thing changed."""
