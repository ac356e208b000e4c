"""Image -> embedding: `backbone` (timm by name), `encoder` (backbone and projection; its file)."""
